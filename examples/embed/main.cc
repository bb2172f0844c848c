// Runs a few token ids through a model under a plan and prints what comes out: the smallest use of the library.
// Usage: embed MODEL_FOLDER [PLAN.json]
#include <headwise/engine.h>

#include <cstdio>

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: embed MODEL_FOLDER [PLAN.json]\n");
    return 2;
  }
  headwise::EngineOptions options;
  options.model = argv[1];
  auto engine = headwise::Engine::Create(options);
  if (!engine.ok()) {
    std::fprintf(stderr, "%s\n", engine.status().message().c_str());
    return 1;
  }
  headwise::Request request;
  request.prompt = {0, 100, 200, 300};
  request.max_new_tokens = 8;
  request.eos = headwise::EosMode::kIgnore;
  if (argc > 2) {
    auto plan = headwise::ReadHeadPlan(argv[2]);
    if (!plan.ok()) {
      std::fprintf(stderr, "%s\n", plan.status().message().c_str());
      return 1;
    }
    request.plan = std::make_shared<headwise::HeadPlan>(*std::move(plan));
  }
  const auto result = (*engine)->Run(std::move(request));
  if (!result.ok()) {
    std::fprintf(stderr, "%s\n", result.status().message().c_str());
    return 1;
  }
  for (const int32_t id : result->tokens) std::printf("%d ", id);
  std::printf("\n%lld KV bytes\n", static_cast<long long>(result->metrics.kv_bytes));
  return 0;
}
