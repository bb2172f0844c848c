#include "model/step_angles.h"

#include <algorithm>
#include <cmath>
#include <optional>

namespace headwise {
namespace {

// Dynamic NTK gives sequences frequencies of their own; more than this many are forgotten.
constexpr size_t kMaxTables = 64;

}  // namespace

AngleTable::AngleTable(std::vector<double> frequencies) : frequencies_(std::move(frequencies)) {
  for (int64_t pos = 0; pos < kBlock; ++pos) {
    const std::vector<double> angles = AnglesAt(pos);
    within_.insert(within_.end(), angles.begin(), angles.end());
  }
}

std::vector<double> AngleTable::AnglesAt(int64_t pos) const {
  std::vector<double> angles;
  for (const double frequency : frequencies_) {
    const double angle = static_cast<double>(pos) * frequency;
    angles.push_back(std::cos(angle));
    angles.push_back(std::sin(angle));
  }
  return angles;
}

void AngleTable::Append(int64_t pos, double amplitude, std::vector<float>& angles) {
  const int64_t begin = pos / kBlock * kBlock;
  if (blocks_.size() >= kMaxBlocks && !blocks_.contains(begin)) blocks_.clear();
  auto block = blocks_.find(begin);
  if (block == blocks_.end()) block = blocks_.emplace(begin, AnglesAt(begin)).first;
  const std::vector<double>& at_begin = block->second;
  const double* within = within_.data() + static_cast<size_t>(pos - begin) * at_begin.size();
  for (size_t i = 0; i < at_begin.size(); i += 2) {
    angles.push_back(static_cast<float>(amplitude * (at_begin[i] * within[i] - at_begin[i + 1] * within[i + 1])));
    angles.push_back(static_cast<float>(amplitude * (at_begin[i + 1] * within[i] + at_begin[i] * within[i + 1])));
  }
}

void AngleTable::AppendMean(int64_t begin, double amplitude, std::vector<float>& angles) const {
  std::vector<double> sums(2 * frequencies_.size());
  for (int64_t pos = begin; pos < begin + kPositionsAhead; ++pos) {
    const std::vector<double> at_pos = AnglesAt(pos);
    for (size_t i = 0; i < sums.size(); ++i) sums[i] += at_pos[i];
  }
  for (const double sum : sums) angles.push_back(static_cast<float>(amplitude * sum / kPositionsAhead));
}

AngleTable& StepAngles::TableOf(const std::vector<double>& frequencies) {
  for (const auto& table : known_) {
    if (table->frequencies() == frequencies) return *table;
  }
  if (known_.size() >= kMaxTables) known_.clear();
  return *known_.emplace_back(std::make_unique<AngleTable>(frequencies));
}

void StepAngles::Fill(const ModelConfig& config, std::span<const AngledSequence> sequences) {
  tables_.resize(config.ropes.size());
  rows_.sink.resize(static_cast<size_t>(config.num_layers));
  rows_.text.clear();
  for (size_t rope = 0; rope < tables_.size(); ++rope) {
    Table& table = tables_[rope];
    table.values.clear();
    table.row_floats = config.ropes[rope].rotary_dims;
    // Text positions come first, so that their rows have the same numbers in all tables.
    for (const AngledSequence& sequence : sequences) {
      AngleTable& angles = TableOf((*sequence.frequencies)[rope]);
      for (int64_t i = 0; i < sequence.num_new; ++i) {
        if (rope == 0) rows_.text.push_back(static_cast<int32_t>(rows_.text.size()));
        angles.Append(sequence.cache->num_tokens() + i, config.ropes[rope].amplitude, table.values);
      }
    }
  }
  rows_.ahead.clear();
  int64_t end_row = 0;
  for (const AngledSequence& sequence : sequences) {
    end_row += sequence.num_new;
    const int64_t from = sequence.cache->ExpectsFrom();
    if (from == 0 || tables_.empty()) continue;
    rows_.ahead.resize(rows_.text.size());
    std::fill_n(rows_.ahead.begin() + end_row - sequence.num_new, sequence.num_new,
                static_cast<int32_t>(tables_.front().num_rows()));  // all have as many still
    for (size_t rope = 0; rope < tables_.size(); ++rope) {
      TableOf((*sequence.frequencies)[rope]).AppendMean(from, config.ropes[rope].amplitude, tables_[rope].values);
    }
  }
  for (int64_t layer_idx = 0; layer_idx < config.num_layers; ++layer_idx) FillSinkRows(config, sequences, layer_idx);
}

void StepAngles::FillSinkRows(const ModelConfig& config, std::span<const AngledSequence> sequences, int64_t layer_idx) {
  std::vector<int32_t>& rows = rows_.sink[static_cast<size_t>(layer_idx)];
  rows.clear();
  // Without a rotation queries are the same wherever they stand.
  const std::optional<int64_t> rope = config.layer(layer_idx).rope;
  const bool counts_in_cache = std::any_of(sequences.begin(), sequences.end(), [&](const AngledSequence& sequence) {
    return sequence.cache->CountsPositions(layer_idx);
  });
  if (!rope || !counts_in_cache) return;
  Table& table = tables_[static_cast<size_t>(*rope)];
  int32_t first_row = 0;
  for (const AngledSequence& sequence : sequences) {
    AngleTable& angles = TableOf((*sequence.frequencies)[static_cast<size_t>(*rope)]);
    // Either the text position or where a rule's positions end: few of these.
    std::vector<std::pair<int64_t, int32_t>> ends;
    for (int64_t i = 0; i < sequence.num_new; ++i) {
      const int64_t pos = sequence.cache->num_tokens() + i;
      for (int64_t kv_head = 0; kv_head < config.num_kv_heads; ++kv_head) {
        const int64_t sink_pos = sequence.cache->rule(layer_idx, kv_head).SinkPosition(pos);
        if (sink_pos == pos) {
          rows.push_back(first_row + static_cast<int32_t>(i));
          continue;
        }
        auto end = std::find_if(ends.begin(), ends.end(), [&](const auto& known) { return known.first == sink_pos; });
        if (end == ends.end()) {
          end = ends.insert(ends.end(), {sink_pos, static_cast<int32_t>(table.num_rows())});
          angles.Append(sink_pos, config.ropes[static_cast<size_t>(*rope)].amplitude, table.values);
        }
        rows.push_back(end->second);
      }
    }
    first_row += static_cast<int32_t>(sequence.num_new);
  }
}

bool StepAngles::HasSinkRows() const {
  return std::any_of(rows_.sink.begin(), rows_.sink.end(), [](const auto& rows) { return !rows.empty(); });
}

}  // namespace headwise
