// A model looked at without being loaded: whether an engine would take it, what it is, and which sequences it would
// admit. Its file is mapped, and nothing of it goes to a backend.
#ifndef HEADWISE_ENGINE_MODEL_PREVIEW_H_
#define HEADWISE_ENGINE_MODEL_PREVIEW_H_

#include <headwise/engine.h>
#include <headwise/status.h>

#include <map>
#include <memory>
#include <optional>
#include <string>

#include "backend/backend.h"
#include "engine/sequence_maker.h"
#include "model/model_config.h"
#include "tensor/dtype.h"

namespace headwise {

// Thread-safety: const functions from any thread.
class ModelPreview {
 public:
  // An error says what an engine with these options would refuse: the key, the tensor, the operation. Small tensors are
  // looked through for numbers that are none; those that a family reorders are copied.
  static Result<std::unique_ptr<ModelPreview>> Open(const EngineOptions& options);

  const ModelConfig& config() const { return config_; }
  const std::string& source_hash() const { return source_hash_; }
  bool has_tokenizer() const { return has_tokenizer_; }
  // As they are in the file: what an engine holds, but for what backends add to it.
  int64_t weight_bytes() const { return weight_bytes_; }
  // The same by format.
  const std::map<DType, int64_t>& bytes_by_format() const { return bytes_by_format_; }
  // Of these, of the experts of all layers, and of those that a token goes through; 0 without experts.
  int64_t expert_bytes() const { return expert_bytes_; }
  int64_t chosen_expert_bytes() const;
  const Backend& backend() const { return *memory_->backend; }

  // Why there could be no such sequence, by its plan, its lengths, or the KV limit.
  Status Check(const SequenceOptions& options) const { return sequences_->Check(options, sequences_->step_tokens()); }

 private:
  ModelPreview() = default;

  ModelConfig config_;
  std::string source_hash_;
  bool has_tokenizer_ = false;
  int64_t weight_bytes_ = 0;
  std::map<DType, int64_t> bytes_by_format_;
  int64_t expert_bytes_ = 0;
  std::shared_ptr<KvMemory> memory_ = std::make_shared<KvMemory>();
  std::optional<SequenceMaker> sequences_;
};

}  // namespace headwise

#endif  // HEADWISE_ENGINE_MODEL_PREVIEW_H_
