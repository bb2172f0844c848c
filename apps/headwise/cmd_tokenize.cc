// headwise tokenize: text to ids and back, from standard input to standard output.
#include <fmt/format.h>
#include <headwise/tokenizer.h>

#include <limits>
#include <utility>
#include <vector>

#include "base/json.h"
#include "commands.h"
#include "common_options.h"

namespace headwise {
namespace {

struct TokenizeOptions {
  std::string model;
  bool decode = false;
  bool no_special = false;
};

Status RunTokenize(const TokenizeOptions& options) {
  HW_ASSIGN_OR_RETURN(const std::unique_ptr<Tokenizer> tokenizer, OpenTokenizer(options.model, LogWarning));
  HW_ASSIGN_OR_RETURN(const std::string input, ReadStdin());
  if (options.decode) {
    HW_ASSIGN_OR_RETURN(const std::vector<int32_t> ids, ParseIds(input, "standard input"));
    for (size_t i = 0; i < ids.size(); ++i) {
      if (ids[i] < tokenizer->vocab_size()) continue;
      return Status::InvalidInput(
          fmt::format("standard input: token {} is id {}, expected 0 to {}", i, ids[i], tokenizer->vocab_size() - 1));
    }
    WriteOutput(tokenizer->Decode(ids, SpecialDisplay::kShow));
    return CheckOutput();
  }
  HW_ASSIGN_OR_RETURN(const std::vector<int32_t> ids,
                      tokenizer->Encode(input, options.no_special ? SpecialText::kAsText : SpecialText::kParse));
  return PrintJson(ids);
}

}  // namespace

void AddTokenizeCommand(CommandLine& line) {
  auto options = std::make_shared<TokenizeOptions>();
  CLI::App& command = *line.app.add_subcommand("tokenize", "Text on standard input to a JSON list of token ids");
  command.add_option("--model,-m", options->model, "Model: a Hugging Face folder or a .gguf file")->required();
  command.add_flag("--decode", options->decode, "The other way: a JSON list of ids to text");
  command.add_flag("--no-special", options->no_special, "Read <|...|> as text, not as special tokens");
  OnChosen(line, command, std::move(options), RunTokenize);
}

}  // namespace headwise
