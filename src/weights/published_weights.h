// Weights of Hugging Face folders that are quantised as they are published: matrices that lie in several tensors, codes
// here and scales there, become matrices in the block format that has the same numbers, one by one, when they are asked
// for. Behind this nothing knows how they lay in the folder. docs/models.md has the methods.
#ifndef HEADWISE_WEIGHTS_PUBLISHED_WEIGHTS_H_
#define HEADWISE_WEIGHTS_PUBLISHED_WEIGHTS_H_

#include <headwise/status.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "base/json.h"
#include "weights/weight_source.h"

namespace headwise {

// What "quantization_config" of a config.json says.
struct PublishedFormat {
  enum class Method : uint8_t {
    kFp8,     // NAME.weight of 8-bit floats; NAME.weight_scale of a matrix or of its rows, or NAME.weight_scale_inv of
              // blocks
    kAwq,     // NAME.qweight, NAME.qzeros, NAME.scales: columns in turns
    kGptq,    // the same, rows one behind the other, and NAME.g_idx
    kPacked,  // NAME.weight_packed, NAME.weight_scale, perhaps NAME.weight_zero_point
    kMxfp4,   // NAME_blocks, NAME_scales
    kNf4,     // NAME.weight, NAME.weight.absmax, perhaps scaled once more, and NAME.weight.quant_state.*: bitsandbytes
  };
  Method method = Method::kFp8;
  std::string origin;          // of the config, for messages
  int64_t group_size = 0;      // elements of a row that share a scale; 0: whole rows, or not said
  int64_t block_rows = 0;      // of kFp8's blocks
  int64_t block_columns = 0;   // likewise
  bool zeros_less_one = true;  // GPTQ's first layout keeps zero points less one
};

// Nothing where the config has no "quantization_config". An error that names the key for a method that we do not read,
// and for numbers of bits, layouts and group sizes of one that we do.
Result<std::optional<PublishedFormat>> ReadPublishedFormat(const JsonObject& config);

// The folder's tensors with matrices put together. What is made of a matrix is the source's until all of it has been
// released, and is made again when it is asked for again.
std::unique_ptr<WeightSource> MakePublishedSource(std::unique_ptr<WeightSource> folder, PublishedFormat format);

// OpenSafetensorsFolder, and MakePublishedSource where the folder's config.json asks for it.
Result<std::unique_ptr<WeightSource>> OpenWeightsFolder(const std::string& folder,
                                                        FileAccess access = FileAccess::kMap);

}  // namespace headwise

#endif  // HEADWISE_WEIGHTS_PUBLISHED_WEIGHTS_H_
