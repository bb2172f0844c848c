#include "bench_common.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "bench/random_model.h"
#include "output.h"
#include "tensor/blocks.h"

namespace headwise {

CLI::App& AddMeasuredOn(CLI::App& command, std::string& shape) {
  CLI::Option* const model = command.get_option("--model")->required(false);
  CLI::Option* const named = command.add_option("--shape", shape, "Random weights of this shape, instead of a model")
                                 ->check(CLI::IsMember(NamedShapes()));
  CLI::Option_group& group = *command.add_option_group("Measured on");
  group.add_options(model, named);
  group.require_option(1);
  return group;
}

Result<DType> RandomWeightsByName(const std::string& name) {
  const std::optional<DType> dtype = DTypeByName(name);
  if (dtype && CanQuantize(*dtype)) return *dtype;
  return Status::InvalidInput(
      fmt::format("--weights: found \"{}\", expected f32, f16, bf16, q8_0, q4_0, q4_k, q6_k or mxfp4", name));
}

BackendOptions BackendOptionsOf(const EngineOptions& engine) {
  return {.name = engine.backend,
          .isa = engine.isa,
          .num_threads = engine.num_threads,
          .batch_invariant = engine.batch_invariant,
          .expert_bytes = engine.expert_bytes};
}

Json MachineJson(const Ceilings& ceilings) {
  return {{"processor", ceilings.processor},
          {"isa", ceilings.isa},
          {"threads", ceilings.num_threads},
          {"multiprocessors", ceilings.num_multiprocessors},
          {"read_bytes_per_second", ceilings.read_bytes_per_second},
          {"f32_flops", ceilings.f32_flops},
          {"bf16_dot_flops", ceilings.bf16_dot_flops},
          {"has_bf16_dot", ceilings.has_bf16_dot},
          {"int8_dot_flops", ceilings.int8_dot_flops},
          {"has_int8_dot", ceilings.has_int8_dot},
          {"int8_tile_flops", ceilings.int8_tile_flops},
          {"fp8_flops", ceilings.fp8_flops}};
}

Json TimingJson(const Timing& timing) {
  return {{"median", timing.median}, {"min", timing.min}, {"max", timing.max}, {"count", timing.count}};
}

std::string CeilingsText(const Json& machine) {
  const auto dot = [&](const std::string& type) {
    return machine["has_" + type].get<bool>() ? Giga(machine[type + "_flops"]) : "not in hardware";
  };
  const bool has_tiles = machine["int8_tile_flops"].get<double>() > 0;
  const bool has_fp8 = machine["fp8_flops"].get<double>() > 0;
  return fmt::format("read {} GB/s; GFLOP/s: f32 {}, bf16 {} {}, int8 dot {}{}{}",
                     Giga(machine["read_bytes_per_second"]), Giga(machine["f32_flops"]), has_tiles ? "tiles" : "dot",
                     dot("bf16_dot"), dot("int8_dot"),
                     has_tiles ? ", int8 tiles " + Giga(machine["int8_tile_flops"]) : "",
                     has_fp8 ? ", fp8 " + Giga(machine["fp8_flops"]) : "");
}

void PrintMachine(const Json& machine) {
  const auto num_threads = machine["threads"].get<int>();
  Print("machine   {}: {}, {} {}\n", machine["processor"].get<std::string>(), machine["isa"].get<std::string>(),
        num_threads > 0 ? num_threads : machine["multiprocessors"].get<int>(),
        num_threads > 0 ? "threads" : "multiprocessors");
  Print("ceilings  {}\n", CeilingsText(machine));
}

void PrintTable(const std::vector<TextRow>& rows) {
  std::vector<size_t> widths(rows.front().size());
  for (const TextRow& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  for (const TextRow& row : rows) {
    std::string line = fmt::format("{:<{}}", row.front(), widths.front());
    for (size_t i = 1; i < row.size(); ++i) line += fmt::format("  {:>{}}", row[i], widths[i]);
    Print("{}\n", line);
  }
}

std::string Percent(const Json& share) {
  return fmt::format("{:.1f} %", 100 * share.get<double>());
}
std::string Giga(const Json& value) {
  return fmt::format("{:.1f}", value.get<double>() / 1e9);
}

}  // namespace headwise
