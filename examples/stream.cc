// A chat whose answers appear while they are made: whole characters at once, never half of one. Messages are read from
// standard input; the KV cache lives on, so no turn is read twice, unless the model's chat template writes anew what
// was said before. Usage: stream MODEL
#include <headwise/chat.h>
#include <headwise/engine.h>

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
  HW_ASSIGN_OR_RETURN(const headwise::ChatFormat format, headwise::FindChatFormat(*engine));

  std::vector<headwise::ChatMessage> messages;
  std::shared_ptr<headwise::Sequence> sequence;
  auto end = headwise::AnswerEnd::kCut;
  for (std::string message; std::getline(std::cin, message);) {
    if (message.empty()) continue;
    messages.push_back({.role = "user", .content = message});
    headwise::NextTurn turn{.goes_on = false};
    if (sequence == nullptr) {
      HW_ASSIGN_OR_RETURN(turn.ids, format.Encode({.messages = messages}));
    } else {
      HW_ASSIGN_OR_RETURN(turn, format.EncodeNextTurn({.messages = messages}, end));
    }
    if (!turn.goes_on) {
      const auto prompt_tokens = static_cast<int64_t>(turn.ids.size());
      HW_ASSIGN_OR_RETURN(sequence,
                          engine->NewSequence({.plan = nullptr, .prompt_tokens = prompt_tokens, .max_tokens = 4096}));
    }
    headwise::Request request;
    request.prompt = std::move(turn.ids);
    request.sequence = sequence;
    request.stop_tokens = format.stop_ids();
    request.max_new_tokens = 32;
    request.on_text = Show;
    HW_ASSIGN_OR_RETURN(const headwise::RequestResult result, engine->Run(std::move(request)));
    messages.push_back({.role = "assistant", .content = result.text});
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
