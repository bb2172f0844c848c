// The subcommands of `headwise`: one file each, one row each in all_commands.cc, and in core_commands.cc if
// headwise_core is all that one needs. A command declares its options here and hands back what to run; it never prints
// an error or exits by itself.
#ifndef HEADWISE_APPS_COMMANDS_H_
#define HEADWISE_APPS_COMMANDS_H_

#include <headwise/status.h>

#include <CLI/CLI.hpp>
#include <functional>
#include <memory>
#include <span>
#include <utility>

namespace headwise {

// The command line while it is being read. `run` is what the chosen subcommand wants to do, set by its callback.
struct CommandLine {
  CLI::App& app;
  std::function<Status()> run;
};

using AddCommand = void (*)(CommandLine& line);

// The subcommands of this program, in the order of --help.
std::span<const AddCommand> Commands();

// Each adds one subcommand to `line.app`.
void AddRunCommand(CommandLine& line);
void AddChatCommand(CommandLine& line);
void AddServeCommand(CommandLine& line);
void AddInspectCommand(CommandLine& line);
void AddLogitsCommand(CommandLine& line);
void AddTokenizeCommand(CommandLine& line);
void AddPlanCommand(CommandLine& line);
void AddEvalCommand(CommandLine& line);
void AddBenchCommand(CommandLine& line);
void AddQuantizeCommand(CommandLine& line);

// Adds `report` to `eval`.
void AddReportTask(CommandLine& line, CLI::App& eval);

// Adds `serve` to `bench`, which is there already.
void AddBenchServeCommand(CommandLine& line);

// Adds `op` to `bench` and returns it.
CLI::App& AddBenchOpCommand(CommandLine& line, CLI::App& bench);

// Binds a subcommand's options to what it does with them. A subcommand of its own that was chosen goes first.
template <typename Options>
void OnChosen(CommandLine& line, CLI::App& command, std::shared_ptr<Options> options, Status (*body)(const Options&)) {
  command.callback([&line, &command, options = std::move(options), body] {
    if (command.get_subcommands().empty()) line.run = [options, body] { return body(*options); };
  });
}

}  // namespace headwise

#endif  // HEADWISE_APPS_COMMANDS_H_
