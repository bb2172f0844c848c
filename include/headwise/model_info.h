// What a program may want to know of a model before it sends texts: its shape, its vocabulary, how long the texts were
// that it was trained on. Engine::info() says it of a loaded one.
#ifndef HEADWISE_MODEL_INFO_H_
#define HEADWISE_MODEL_INFO_H_

#include <headwise/head_plan.h>
#include <headwise/status.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace headwise {

struct ModelInfo {
  ModelShape shape;            // family, L, Hq, Hkv, D: what a plan must fit
  int64_t model_dim = 0;       // E
  int64_t ffn_dim = 0;         // F
  int64_t vocab_size = 0;      // V: ids are below it
  int64_t trained_length = 0;  // tokens; longer texts get worse answers, except under rules that count positions in the
                               // cache
  // [L] of each layer, the model's own: key j is read if t - j < window; none: every key.
  std::vector<std::optional<int64_t>> sliding_windows;
  std::optional<int32_t> bos_id;  // as config.json has it; what a text begins with says BeginOfText (prompt.h)
  std::vector<int32_t> eos_ids;   // each ends a text
  bool has_tokenizer = false;     // a model without one runs on ids
};

// How much of a mixture's experts is in memory.
struct ExpertMemory {
  int64_t total_bytes = 0;     // of all experts; 0: the model has none
  int64_t resident_bytes = 0;  // of these, in memory now: pages of a mapped file too
  int64_t num_chosen = 0;      // under EngineOptions::expert_bytes: how often an expert was asked for,
  int64_t num_read = 0;        // and how often it had to be read of the file
};

// Of a Hugging Face folder or a .gguf file, without reading its weights.
Result<ModelInfo> ReadModelInfo(const std::string& model);

}  // namespace headwise

#endif  // HEADWISE_MODEL_INFO_H_
