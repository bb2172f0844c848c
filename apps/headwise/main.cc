// The headwise command: one subcommand per file, wiring only; which ones there are says a table of its own
// (all_commands.cc, core_commands.cc). Exit status: 0 done, 1 the input was wrong, 2 wrong
// usage.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <exception>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "commands.h"
#include "lost_mapping.h"
#include "output.h"

namespace {

constexpr int kInputError = 1;
constexpr int kUsageError = 2;

// stdout belongs to results; everything else goes to stderr.
void SetUpLog() {
  auto logger = spdlog::stderr_color_mt("headwise");
  logger->set_pattern("headwise: %^%l%$: %v");
  spdlog::set_default_logger(std::move(logger));
}

std::vector<std::string> SubcommandNames(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    if (!command->get_name().empty()) names.push_back(command->get_name());  // option groups have none
  }
  return names;
}

// The parser would only say that a subcommand is missing. Empty if every word in a subcommand's place is one.
std::string FindUnknownSubcommand(const CLI::App& app, std::span<char* const> arguments) {
  const CLI::App* command = &app;
  for (const std::string_view word : arguments) {
    const std::vector<std::string> names = SubcommandNames(*command);
    if (names.empty() || word.starts_with('-')) break;
    if (std::find(names.begin(), names.end(), word) == names.end()) {
      return fmt::format("{} \"{}\" is unknown, expected one of: {}", command->get_name(), word,
                         fmt::join(names, ", "));
    }
    command = command->get_subcommand(std::string(word));
  }
  return "";
}

int Run(int argc, char** argv) {
  CLI::App app("headwise: long-context LLM inference in which every KV head has its own cache rule", "headwise");
  app.require_subcommand(1);
  headwise::CommandLine line{.app = app, .run = nullptr};
  for (const headwise::AddCommand add_command : headwise::Commands()) add_command(line);
  const std::string unknown =
      FindUnknownSubcommand(app, std::span(argv, static_cast<size_t>(argc)).subspan(argc > 0 ? 1 : 0));
  if (!unknown.empty()) {
    spdlog::error("{}", unknown);
    return kUsageError;
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (app.exit(error) != 0) return kUsageError;
    line.run = [] { return headwise::Status::Ok(); };  // help was asked for, and printed
  }
  headwise::Status status = line.run();
  const headwise::Status output = headwise::CloseOutput();
  if (status.ok()) status = output;
  if (status.ok()) return 0;
  spdlog::error("{}", status.message());
  return kInputError;
}

}  // namespace

int main(int argc, char** argv) {
  headwise::KeepStandardFiles();
  SetUpLog();
  headwise::ReportLostMappings();
  try {
    return Run(argc, argv);
  } catch (const std::exception& error) {  // out of memory, in practice
    spdlog::error("{}", error.what());
    return kInputError;
  }
}
