// A chat whose answers appear while they are made: whole characters at once, never half of one. Messages are read from
// standard input; the KV cache lives on, so no turn is read twice. Usage: stream MODEL
#include <headwise/chat.h>
#include <headwise/engine.h>
#include <headwise/prompt.h>

#include <cstdio>
#include <iostream>

namespace {

bool Show(std::string_view text) {
  return std::fwrite(text.data(), 1, text.size(), stdout) == text.size() && std::fflush(stdout) == 0;
}

headwise::Status Chat(const std::string& model) {
  headwise::EngineOptions options;
  options.model = model;
  HW_ASSIGN_OR_RETURN(const auto engine, headwise::Engine::Create(options));
  if (!engine->has_tokenizer()) return headwise::Status::NotFound(model + ": has no tokenizer");
  const headwise::Tokenizer& tokenizer = engine->tokenizer();
  HW_ASSIGN_OR_RETURN(const headwise::ChatForm form, headwise::FindChatForm(tokenizer, ""));

  std::shared_ptr<headwise::Sequence> sequence;
  auto end = headwise::AnswerEnd::kCut;
  for (std::string message; std::getline(std::cin, message);) {
    if (message.empty()) continue;
    headwise::Request request;
    if (sequence == nullptr) {
      const auto bos = headwise::BeginOfText(*engine);
      HW_ASSIGN_OR_RETURN(request.prompt, headwise::EncodeFirstTurn(tokenizer, form, message, bos));
      const auto prompt_tokens = static_cast<int64_t>(request.prompt.size());
      HW_ASSIGN_OR_RETURN(sequence,
                          engine->NewSequence({.plan = nullptr, .prompt_tokens = prompt_tokens, .max_tokens = 4096}));
    } else {
      HW_ASSIGN_OR_RETURN(request.prompt, headwise::EncodeNextTurn(tokenizer, form, message, end));
    }
    request.sequence = sequence;
    request.stop_tokens = headwise::ChatStopIds(tokenizer, form);
    request.max_new_tokens = 32;
    request.on_text = Show;
    HW_ASSIGN_OR_RETURN(const headwise::RequestResult result, engine->Run(std::move(request)));
    end = result.finish == headwise::FinishReason::kEos ? headwise::AnswerEnd::kClosed : headwise::AnswerEnd::kCut;
    Show("\n");
  }
  return headwise::Status::Ok();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: stream MODEL\n");
    return 2;
  }
  const headwise::Status status = Chat(argv[1]);
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.message().c_str());
  return status.ok() ? 0 : 1;
}
