// A Hugging Face folder as one .gguf file, its matrices in another number format.
#ifndef HEADWISE_ENGINE_QUANTIZE_H_
#define HEADWISE_ENGINE_QUANTIZE_H_

#include <headwise/status.h>

#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "tensor/dtype.h"

namespace headwise {

struct QuantizeOptions {
  std::string model;          // folder
  std::string out;            // file; replaced in one step when all of it is written
  DType type = DType::kQ8_0;  // CanQuantize (tensor/blocks.h)
  int num_threads = 0;        // 0: one per core
  std::function<void(int64_t num_bytes, int64_t total)> on_progress = {};
};

struct QuantizeResult {
  int64_t source_bytes = 0;  // of the tensors, in the checkpoint
  int64_t file_bytes = 0;    // of the tensors, in the file
  // Matrices by the format that they got. Where it is q4_0 or q4_k, the embedding and the output matrix get q6_k: they
  // are a small part of a large model, and every token passes through them. A matrix whose rows are not whole blocks
  // gets the next format that holds it: q8_0 with blocks of 32, then f16.
  std::map<DType, int64_t> num_matrices;
};

// Vectors stay f32. Errors name what was found and what was expected; `out` is then what it was before.
Result<QuantizeResult> QuantizeModel(const QuantizeOptions& options);

}  // namespace headwise

#endif  // HEADWISE_ENGINE_QUANTIZE_H_
