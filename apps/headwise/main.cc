// The headwise command: one subcommand per file, wiring only; which ones there are says a table of its own
// (all_commands.cc, core_commands.cc). Exit status: 0 done, 1 the input was wrong or the
// output lost, 2 wrong usage, 130 ended by Ctrl-C.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <csignal>
#include <exception>
#include <new>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "commands.h"
#include "lost_mapping.h"
#include "option_checks.h"
#include "output.h"
#include "text/escape.h"

namespace {

constexpr int kInputError = 1;
constexpr int kUsageError = 2;
constexpr int kInterrupted = 130;  // as shells have it: 128 and the number of the signal

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

// Messages hold names out of files.
void LogError(std::string_view message) {
  spdlog::error("{}", headwise::EscapeControls(message));
}

// Empty where every word with dashes in front is an option, or the value of one. The parser would take what follows an
// unknown option for a word of its own, and complain of that.
std::string FindUnknownOption(const CLI::App& app, std::span<char* const> arguments) {
  const CLI::App* command = &app;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string_view word = arguments[i];
    if (word == "--") return "";
    if (!word.starts_with("--")) {
      const std::vector<std::string> names = SubcommandNames(*command);
      if (std::find(names.begin(), names.end(), word) != names.end()) {
        command = command->get_subcommand(std::string(word));
      } else if (word.size() == 2 && word.front() == '-') {
        const CLI::Option* option = command->get_option_no_throw(std::string(word));
        if (option != nullptr && option->get_items_expected_min() > 0) ++i;
      }
      continue;
    }
    const std::string name(word.substr(0, word.find('=')));
    const CLI::Option* option = command->get_option_no_throw(name);
    if (option == nullptr) {
      std::string likely = name;
      std::replace(likely.begin(), likely.end(), '_', '-');
      const bool is_known = command->get_option_no_throw(likely) != nullptr;
      return fmt::format(
          "{}: the option {} is unknown; {}", command->get_name(), name,
          is_known ? fmt::format("expected {}", likely) : fmt::format("{} --help has a list", command->get_name()));
    }
    if (word.size() == name.size() && option->get_items_expected_min() > 0) ++i;  // its value
  }
  return "";
}

int Run(int argc, char** argv) {
  CLI::App app("headwise: long-context LLM inference in which every KV head has its own cache rule", "headwise");
  app.require_subcommand(1);
  app.set_version_flag("--version", "headwise " HEADWISE_VERSION, "Print the version and exit");
  headwise::CommandLine line{.app = app, .run = nullptr};
  for (const headwise::AddCommand add_command : headwise::Commands()) add_command(line);
  headwise::CheckValues(app);
  const auto arguments = std::span(argv, static_cast<size_t>(argc)).subspan(argc > 0 ? 1 : 0);
  std::string unknown = FindUnknownSubcommand(app, arguments);
  if (unknown.empty()) unknown = FindUnknownOption(app, arguments);
  if (!unknown.empty()) {
    LogError(unknown);
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
  LogError(status.message());
  return status.code() == headwise::StatusCode::kCancelled ? kInterrupted : kInputError;
}

}  // namespace

int main(int argc, char** argv) {
  headwise::KeepStandardFiles();
  std::signal(SIGXFSZ, SIG_IGN);  // a file that may not grow further is then an error of writing, with a message
  SetUpLog();
  headwise::ReportLostMappings();
  try {
    return Run(argc, argv);
  } catch (const std::bad_alloc&) {
    LogError("out of memory: found less than the model, its KV cache and this text take, expected more, or less to do");
    return kInputError;
  } catch (const std::exception& error) {  // ours to mend: what a file may hold has a message of its own
    LogError(fmt::format("unexpected: {}", error.what()));
    return kInputError;
  }
}
