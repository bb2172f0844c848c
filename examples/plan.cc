// The same question under two head plans: every head full, and the plan in a file. Shows the answers and the KV bytes.
// Usage: plan MODEL PLAN.json
#include <headwise/engine.h>
#include <headwise/head_plan.h>
#include <headwise/prompt.h>

#include <cstdio>
#include <memory>
#include <utility>

#include "record.h"

namespace {

headwise::Status Compare(const std::string& model, const std::string& plan_path) {
  headwise::EngineOptions options;
  options.model = model;
  HW_ASSIGN_OR_RETURN(const auto engine, headwise::Engine::Create(options));
  HW_ASSIGN_OR_RETURN(headwise::HeadPlan plan, headwise::ReadHeadPlan(plan_path));
  const auto planned = std::make_shared<const headwise::HeadPlan>(std::move(plan));
  const auto dense = std::make_shared<const headwise::HeadPlan>(headwise::HeadPlan::Dense(engine->shape()));

  for (const auto& [name, used] : {std::pair("every head full", dense), std::pair("planned", planned)}) {
    headwise::Request request;
    HW_ASSIGN_OR_RETURN(request.prompt, headwise::EncodePrompt(*engine, MakeRecord(190) + MakeQuestion(33)));
    request.plan = used;
    request.max_new_tokens = 24;
    request.stop = {"\n"};
    HW_ASSIGN_OR_RETURN(const headwise::RequestResult result, engine->Run(std::move(request)));
    const headwise::RequestMetrics& metrics = result.metrics;
    std::printf("%-16s %s\n", name, result.text.c_str());
    std::printf("%-16s %lld tokens read, %lld KV bytes: %lld in full heads, %lld in others\n", "",
                static_cast<long long>(metrics.prompt_tokens), static_cast<long long>(metrics.kv_bytes),
                static_cast<long long>(metrics.kv_bytes_full), static_cast<long long>(metrics.kv_bytes_bounded));
  }
  return headwise::Status::Ok();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) {
    std::fprintf(stderr, "usage: plan MODEL PLAN.json\n");
    return 2;
  }
  const headwise::Status status = Compare(argv[1], argv[2]);
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.message().c_str());
  return status.ok() ? 0 : 1;
}
