// What GGUF files call things: one row per model family that the format has an architecture for, with the names of its
// tensors there and in a Hugging Face checkpoint, and the orders of rows that differ. Reading and writing use the same
// rows. The container itself is weights/gguf.h.
#ifndef HEADWISE_MODEL_GGUF_NAMES_H_
#define HEADWISE_MODEL_GGUF_NAMES_H_

#include <headwise/status.h>

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "model/model_config.h"

namespace headwise {

// Metadata that other programs do not write. All are optional.
inline constexpr const char* kGgufFamilyKey = "headwise.family";           // where an architecture holds several
inline constexpr const char* kGgufZeroSinkKey = "headwise.zero_sink";      // ModelConfig::zero_sink
inline constexpr const char* kGgufSourceHashKey = "headwise.source_hash";  // of the checkpoint that the file is made of

// [rotary_dims / 2] f32: RopeConfig::freq_divisors, of all lengths; under LongRoPE those of short and of long ones.
inline constexpr const char* kGgufRopeFreqs = "rope_freqs.weight";
inline constexpr const char* kGgufRopeShort = "rope_factors_short.weight";
inline constexpr const char* kGgufRopeLong = "rope_factors_long.weight";

// One tensor, or all tensors of one module; {} stands for the layer.
struct GgufNameRow {
  enum class Holds {
    kWeight,         // name.weight
    kWeightAndBias,  // name.weight and, where the model has one, name.bias
    kWhole,          // the names are whole: nothing is put behind them
  };
  enum class Rows { kAny, kQuery, kKey, kFusedQkv };
  // How numbers of the file differ from the checkpoint's.
  enum class Differs {
    kNot,
    kOneMore,     // norms that the checkpoint holds less one
    kTransposed,  // the matrix, not the bias
    kHeadsInOne,  // a row for each head, where the checkpoint has a tensor: `family`.0.weight, `family`.1.weight, ...
  };

  std::string_view file;
  std::string_view family;
  Holds holds = Holds::kWeightAndBias;
  Rows rows = Rows::kAny;
  Differs differs = Differs::kNot;
};

struct GgufArchitecture {
  // How query and key rows of one head are ordered: frequency i turns rows i and i + D / 2 of the family's checkpoint,
  // and in a file of paired rows these two are neighbours.
  enum class RopeRows { kHalves, kPairs };
  // How the family's checkpoint orders the rows of one query-key-value matrix. In files it is always blocks: all query
  // rows, all key rows, all value rows.
  enum class FusedRows { kBlocks, kGroups };

  std::string_view name;    // "general.architecture", and the first part of its own keys
  std::string_view family;  // ModelFamily::name
  RopeRows rope_rows = RopeRows::kHalves;
  FusedRows fused_rows = FusedRows::kBlocks;
  std::span<const GgufNameRow> names;
  // Which layers have the file's window where no pattern says it: all but every n-th one, or all where this is 0. None:
  // the family knows no windows.
  std::optional<int64_t> window_period = {};
  // Every n-th layer is not rotated where no pattern says it; 0: all are.
  int64_t unrotated_period = 0;
  // What names of some checkpoints begin with where those of `names` begin with the second.
  std::span<const std::pair<std::string_view, std::string_view>> prefixes = {};

  bool SlidesWithoutPattern(int64_t layer_idx) const {
    return window_period && (*window_period == 0 || layer_idx % *window_period != *window_period - 1);
  }
  bool RotatesWithoutPattern(int64_t layer_idx) const {
    return unrotated_period == 0 || layer_idx % unrotated_period != unrotated_period - 1;
  }
};

// The first row of an architecture is the family that a file holds unless something in it says otherwise.
std::span<const GgufArchitecture> GgufArchitectures();
// Null where the family has no architecture in the format.
const GgufArchitecture* FindGgufArchitecture(std::string_view family);

// A tensor of the family's checkpoint as files call it; nothing if there is no such tensor in this architecture. All
// parts of a tensor in parts (Differs::kHeadsInOne) have the same name.
std::optional<std::string> GgufTensorName(const GgufArchitecture& architecture, std::string_view family_name);
// The other way. Empty for a tensor that the architecture does not know; two names where two layouts of the family
// have different names for it.
std::vector<std::string> FamilyTensorNames(const GgufArchitecture& architecture, std::string_view file_name);

// The tensor's rows in a file: row i there is row [i] of the checkpoint. Empty where both have the same order.
// `family_name` is a tensor of the checkpoint; a bias has the rows of its matrix.
std::vector<int64_t> GgufRowOrder(const GgufArchitecture& architecture, const ModelConfig& config,
                                  std::string_view family_name);

// The number of a head that has this tensor to itself in the checkpoint, and is a row of one in files.
std::optional<int64_t> GgufHeadOf(const GgufArchitecture& architecture, std::string_view family_name);
// Whether a tensor of a checkpoint is of one expert or of several. Layouts differ; files have three a layer, of all
// experts each, which are made of the weights as they are read.
bool GgufIsOfExpert(std::string_view family_name);
inline constexpr const char* kGgufExpertTensors[] = {"blk.{}.ffn_gate_exps", "blk.{}.ffn_up_exps",
                                                     "blk.{}.ffn_down_exps"};
// What every number has more in files: 0 or 1.
double GgufOffset(const GgufArchitecture& architecture, std::string_view family_name);
// Whether the matrix in files is the transpose of the checkpoint's.
bool GgufIsTransposed(const GgufArchitecture& architecture, std::string_view family_name);

}  // namespace headwise

#endif  // HEADWISE_MODEL_GGUF_NAMES_H_
