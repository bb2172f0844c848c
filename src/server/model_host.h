// The models that a server answers with, each behind a service of its own, and the head plans that requests choose
// from. Plans come and go while it runs; one in use stays alive until the last request with it is over.
#ifndef HEADWISE_SERVER_MODEL_HOST_H_
#define HEADWISE_SERVER_MODEL_HOST_H_

#include <headwise/chat.h>
#include <headwise/engine.h>
#include <headwise/grammar.h>
#include <headwise/service.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "server/api_error.h"
#include "server/metrics.h"
#include "server/prefix_store.h"
#include "server/tool_syntax.h"

namespace headwise {

struct NamedPlan {
  std::string name;
  std::shared_ptr<const HeadPlan> plan;  // null: every head full
};

// Everything but the plans stays as it is. Thread-safe.
class ServedModel {
 public:
  struct Options {
    std::string name;
    int64_t max_context = 0;      // of prompt and answer together; 0: the trained length
    ChatFormatOptions chat = {};  // in place of what the model brings
    std::string variables = {};   // for its chat template, where a request names no other; a JSON object, or empty
    // For texts that requests with the same beginning go on from; 0: none are kept. Under a limit of KV bytes they are
    // part of it.
    int64_t prefix_cache_bytes = 0;
    // Where these are kept over restarts; several models may have one. Null: nowhere. Without such texts it is not
    // used.
    std::shared_ptr<PrefixDir> prefix_dir = nullptr;
  };
  // A model without a chat format, or without a tokenizer, is served with what it has.
  static Result<std::unique_ptr<ServedModel>> Create(std::unique_ptr<Service> service, Options options);

  const std::string& name() const { return options_.name; }
  int64_t created() const { return created_; }
  int64_t max_context() const { return max_context_; }
  Service& service() const { return *service_; }
  const Engine& engine() const { return service_->engine(); }
  // As a response's system_fingerprint.
  const std::string& fingerprint() const { return fingerprint_; }
  // Null where there is none; chat_status says why.
  const ChatFormat* chat_format() const { return chat_format_ ? &*chat_format_ : nullptr; }
  const Status& chat_status() const { return chat_status_; }
  // Whether a template of the model tells a developer's messages from a system prompt.
  bool knows_developers() const { return knows_developers_; }
  const std::string& template_variables() const { return options_.variables; }
  // How its template has calls of functions; kGeneric without one.
  ToolSyntax tool_syntax() const { return tool_syntax_; }
  // Made when it is first asked for: its vocabulary takes some memory. kUnsupported in a build without grammars.
  Result<const GrammarCompiler*> Grammars() const;
  ModelMetrics& metrics() const { return metrics_; }
  // Null where no prefixes are kept.
  PrefixStore* prefixes() const { return prefixes_.get(); }
  // Before a request with these ids and that plan (null: every head full) is submitted that reuses prefixes: reads the
  // file that it may go on from. Not on the engine's thread.
  void FetchPrefix(const HeadPlan* plan, std::span<const int32_t> ids) const;
  // Ends all that runs (Service::Shutdown), then writes what is kept and not on disk yet.
  void Shutdown(std::chrono::milliseconds grace);

  // Of the name "", which is the default's, and "full" too. 404 where there is none.
  ApiResult<NamedPlan> FindPlan(std::string_view name) const;
  // "full" first, the others in the order in which they came.
  std::vector<NamedPlan> ListPlans() const;
  std::string default_plan() const;
  // The plan has to fit; its name may not be taken (409). `origin` opens messages about it.
  std::optional<ApiError> AddPlan(const std::string& name, HeadPlan plan, const std::string& origin);
  // Requests that have it go on. What was the default before becomes "full".
  std::optional<ApiError> RemovePlan(std::string_view name);
  // Requires: there is one of this name.
  void SetDefaultPlan(const std::string& name);

 private:
  ServedModel(std::unique_ptr<Service> service, Options options);
  void FindFormat();
  // Where it stands; empty without one.
  std::string_view TemplateWithTools() const;

  std::unique_ptr<Service> service_;
  Options options_;
  std::shared_ptr<PrefixStore> prefixes_;
  int64_t created_ = 0;
  int64_t max_context_ = 0;
  std::string fingerprint_;
  std::optional<ChatFormat> chat_format_;
  Status chat_status_;
  bool knows_developers_ = false;
  ToolSyntax tool_syntax_ = ToolSyntax::kGeneric;
  mutable std::mutex grammars_mutex_;
  mutable std::unique_ptr<GrammarCompiler> grammars_;  // guarded by grammars_mutex_
  mutable ModelMetrics metrics_;
  mutable std::mutex mutex_;
  std::vector<NamedPlan> plans_;  // guarded by mutex_; without "full"
  std::string default_plan_;      // guarded by mutex_
};

// Filled before it serves; the list of models does not change from then on.
class ModelHost {
 public:
  // Names are told apart.
  Status Add(std::unique_ptr<ServedModel> model);
  const std::vector<std::unique_ptr<ServedModel>>& models() const { return models_; }

  // The first for the name "". 404 where there is none. Requires: there are models.
  ApiResult<ServedModel*> Find(std::string_view name) const;
  // Ends all that runs: Service::Shutdown of each.
  void Shutdown(std::chrono::milliseconds grace);

 private:
  std::vector<std::unique_ptr<ServedModel>> models_;
};

// Letters, digits, ".", "_" and "-", 1 to 64 of them: a name is part of paths.
bool IsPlanName(std::string_view name);

}  // namespace headwise

#endif  // HEADWISE_SERVER_MODEL_HOST_H_
