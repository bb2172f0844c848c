// The rotary angles of one step, worked out on the host: for each rope of the model a row of cosines and sines for
// every position that occurs, and which row each token and head takes.
#ifndef HEADWISE_MODEL_STEP_ANGLES_H_
#define HEADWISE_MODEL_STEP_ANGLES_H_

#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "kv/kv_cache.h"
#include "model/model_config.h"
#include "model/rope.h"

namespace headwise {

inline constexpr int64_t kPositionsAhead = 512;  // as in the authors' code [expected §3]

// Angles of any position from two tables, in double: those of the 256 positions within a block and those of blocks'
// beginnings, which are worked out once each. cos(a + b) = cos a cos b - sin a sin b loses two units in the last place
// of a double, nothing of a float. A step of many sequences would otherwise spend its host time in sines.
class AngleTable {
 public:
  explicit AngleTable(std::vector<double> frequencies);

  const std::vector<double>& frequencies() const { return frequencies_; }
  // Appends cos, sin pairs [rotary_dims / 2, 2] of one position, times `amplitude`.
  void Append(int64_t pos, double amplitude, std::vector<float>& angles);
  // The mean of these over kPositionsAhead from `begin` on, no rotation itself.
  void AppendMean(int64_t begin, double amplitude, std::vector<float>& angles) const;

 private:
  static constexpr int64_t kBlock = 256;
  // Beginnings of blocks that are remembered: of a million tokens.
  static constexpr size_t kMaxBlocks = 4096;
  std::vector<double> AnglesAt(int64_t pos) const;  // cos, sin pairs

  std::vector<double> frequencies_;  // radians per token
  std::vector<double> within_;       // [kBlock][R/2, 2]
  std::unordered_map<int64_t, std::vector<double>> blocks_;
};

// What is asked of one sequence.
struct AngledSequence {
  const KvCache* cache = nullptr;
  int64_t num_new = 0;
  const SequenceFrequencies* frequencies = nullptr;
};

// Thread-safety: none. Keeps memory and tables from step to step.
class StepAngles {
 public:
  struct Table {
    std::vector<float> values;  // [A, R/2, 2]
    int64_t row_floats = 0;     // R

    int64_t num_rows() const { return row_floats == 0 ? 0 : static_cast<int64_t>(values.size()) / row_floats; }
  };

  void Fill(const ModelConfig& config, std::span<const AngledSequence> sequences);

  // Which rows of the tables are taken.
  struct Rows {
    // [T] of each token's text position, the same in every table.
    std::vector<int32_t> text;
    // [T] of the mean rotation behind the prompt, of sequences whose heads expect what comes there (of others any), the
    // same in every table; empty where there are none.
    std::vector<int32_t> ahead;
    // By layer [T * Hkv] of SinkPosition(t) per token and KV head, in the table of the layer's rope; empty where no
    // head of the layer counts positions in its cache.
    std::vector<std::vector<int32_t>> sink;

    friend bool operator==(const Rows&, const Rows&) = default;
  };

  const std::vector<Table>& tables() const { return tables_; }  // by rope
  const Rows& rows() const { return rows_; }
  bool HasSinkRows() const;

 private:
  AngleTable& TableOf(const std::vector<double>& frequencies);
  void FillSinkRows(const ModelConfig& config, std::span<const AngledSequence> sequences, int64_t layer_idx);

  std::vector<std::unique_ptr<AngleTable>> known_;
  std::vector<Table> tables_;
  Rows rows_;
};

}  // namespace headwise

#endif  // HEADWISE_MODEL_STEP_ANGLES_H_
