// Text in, text out. Usage: hello MODEL ["A text to go on with"]
#include <headwise/engine.h>
#include <headwise/model_info.h>
#include <headwise/prompt.h>

#include <cstdio>

#include "record.h"

namespace {

headwise::Status Hello(const std::string& model, const std::string& text) {
  headwise::EngineOptions options;
  options.model = model;
  HW_ASSIGN_OR_RETURN(const auto engine, headwise::Engine::Create(options));
  const headwise::ModelInfo info = engine->info();
  std::printf("%s, %lld layers, %lld KV heads each, trained on %lld tokens\n", info.shape.architecture.c_str(),
              static_cast<long long>(info.shape.num_layers), static_cast<long long>(info.shape.num_kv_heads),
              static_cast<long long>(info.trained_length));

  headwise::Request request;
  HW_ASSIGN_OR_RETURN(request.prompt, headwise::EncodePrompt(*engine, text));
  request.max_new_tokens = 24;
  request.stop = {"\n"};
  HW_ASSIGN_OR_RETURN(const headwise::RequestResult result, engine->Run(std::move(request)));
  std::printf("%s\n", result.text.c_str());
  return headwise::Status::Ok();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: hello MODEL [TEXT]\n");
    return 2;
  }
  const headwise::Status status = Hello(argv[1], argc > 2 ? argv[2] : MakeRecord(20) + MakeQuestion(7));
  if (!status.ok()) std::fprintf(stderr, "%s\n", status.message().c_str());
  return status.ok() ? 0 : 1;
}
