// Two questions about one text that is read once: each goes on in a fork, which shares the text's pages. Both run at
// the same time, a token of each per step. Usage: fork MODEL
#include <headwise/engine.h>
#include <headwise/prompt.h>

#include <cstdio>
#include <vector>

#include "record.h"

namespace {

constexpr int64_t kNewTokens = 24;

headwise::Status Ask(const std::string& model) {
  headwise::EngineOptions options;
  options.model = model;
  HW_ASSIGN_OR_RETURN(const auto engine, headwise::Engine::Create(options));

  HW_ASSIGN_OR_RETURN(const std::vector<int32_t> text, headwise::EncodePrompt(*engine, MakeRecord(150)));
  const auto text_tokens = static_cast<int64_t>(text.size());
  HW_ASSIGN_OR_RETURN(const auto sequence,
                      engine->NewSequence({.plan = nullptr, .prompt_tokens = text_tokens, .max_tokens = 8192}));
  headwise::ForcedRun reading;
  reading.sequence = sequence;
  reading.ids = text;
  HW_RETURN_IF_ERROR(engine->RunForced(reading));
  std::printf("read %lld tokens once, %lld KV bytes\n", static_cast<long long>(text_tokens),
              static_cast<long long>(engine->kv_bytes()));

  std::vector<headwise::RequestId> requests;
  for (const int line : {67, 101}) {
    headwise::Request request;
    HW_ASSIGN_OR_RETURN(request.prompt, engine->tokenizer().Encode(MakeQuestion(line)));
    HW_ASSIGN_OR_RETURN(request.sequence, engine->Fork(*sequence));
    request.max_new_tokens = kNewTokens;
    request.stop = {"\n"};
    HW_ASSIGN_OR_RETURN(const headwise::RequestId id, engine->Submit(std::move(request)));
    requests.push_back(id);
  }
  for (bool more = true; more;) {
    HW_ASSIGN_OR_RETURN(more, engine->Step());
  }
  for (const headwise::RequestId id : requests) {
    HW_ASSIGN_OR_RETURN(const headwise::RequestResult result, engine->Take(id));
    std::printf("%s\n", result.text.c_str());
  }
  std::printf("%lld KV bytes with both\n", static_cast<long long>(engine->kv_peak_bytes()));
  return headwise::Status::Ok();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: fork MODEL\n");
    return 2;
  }
  const headwise::Status status = Ask(argv[1]);
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.message().c_str());
  return status.ok() ? 0 : 1;
}
