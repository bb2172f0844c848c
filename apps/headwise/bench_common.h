// What `bench` and `bench op` share: on what they measure, the machine beside every figure, tables.
#ifndef HEADWISE_APPS_BENCH_COMMON_H_
#define HEADWISE_APPS_BENCH_COMMON_H_

#include <headwise/status.h>

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "backend/all_backends.h"
#include "base/json.h"
#include "bench/bench.h"
#include "tensor/dtype.h"

namespace headwise {

// --shape, and that either it or --model is given; returns the two as a group. Requires: `command` has --model.
CLI::App& AddMeasuredOn(CLI::App& command, std::string& shape);

// A format that random weights can have.
Result<DType> RandomWeightsByName(const std::string& name);

BackendOptions BackendOptionsOf(const EngineOptions& engine);

Json MachineJson(const Ceilings& ceilings);
Json TimingJson(const Timing& timing);

// The machine and its ceilings, of MachineJson.
void PrintMachine(const Json& machine);
// The ceilings alone: "read 20.1 GB/s; GFLOP/s: f32 ...".
std::string CeilingsText(const Json& machine);

using TextRow = std::vector<std::string>;
// The first column to the left, numbers to the right.
void PrintTable(const std::vector<TextRow>& rows);
std::string Percent(const Json& share);
std::string Giga(const Json& value);

}  // namespace headwise

#endif  // HEADWISE_APPS_BENCH_COMMON_H_
