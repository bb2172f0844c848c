// The headwise command: one subcommand per file, wiring only.
#include <CLI/CLI.hpp>

int main(int argc, char** argv) {
  CLI::App app("headwise: long-context LLM inference in which every KV head has its own cache rule", "headwise");
  app.require_subcommand(1);
  CLI11_PARSE(app, argc, argv);
  return 0;
}
