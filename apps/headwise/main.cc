// The headwise command: one subcommand per file, wiring only. Exit status: 0 done, 1 the input was wrong, 2 wrong
// usage.
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include <CLI/CLI.hpp>
#include <exception>

#include "commands.h"

namespace {

constexpr int kInputError = 1;
constexpr int kUsageError = 2;

constexpr void (*kCommands[])(headwise::CommandLine&) = {
    headwise::AddRunCommand,       //
    headwise::AddChatCommand,      //
    headwise::AddLogitsCommand,    //
    headwise::AddTokenizeCommand,  //
    headwise::AddEvalCommand,      //
    headwise::AddBenchCommand,     //
};

// stdout belongs to results; everything else goes to stderr.
void SetUpLog() {
  auto logger = spdlog::stderr_color_mt("headwise");
  logger->set_pattern("headwise: %^%l%$: %v");
  spdlog::set_default_logger(std::move(logger));
}

int Run(int argc, char** argv) {
  CLI::App app("headwise: long-context LLM inference in which every KV head has its own cache rule", "headwise");
  app.require_subcommand(1);
  headwise::CommandLine line{.app = app, .run = nullptr};
  for (const auto add_command : kCommands) add_command(line);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kUsageError;
  }
  const headwise::Status status = line.run();
  if (status.ok()) return 0;
  spdlog::error("{}", status.message());
  return kInputError;
}

}  // namespace

int main(int argc, char** argv) {
  SetUpLog();
  try {
    return Run(argc, argv);
  } catch (const std::exception& error) {  // out of memory, in practice
    spdlog::error("{}", error.what());
    return kInputError;
  }
}
