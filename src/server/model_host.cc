#include "server/model_host.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <ctime>
#include <utility>

#include "engine/read_plan.h"
#include "model/model_config.h"

namespace headwise {
namespace {

constexpr size_t kMaxPlans = 256;
constexpr size_t kMaxPlanName = 64;

std::string FingerprintOf(const Engine& engine) {
  const Arithmetic arithmetic = engine.arithmetic();
  return fmt::format("headwise-{}-{}-{}-{}-{}{}", arithmetic.backend, arithmetic.isa, arithmetic.compute,
                     arithmetic.kv_dtype, arithmetic.chunk_tokens,
                     arithmetic.batch_invariant ? "-batch-invariant" : "");
}

// What pages are pages of: they mean something else where any of it is otherwise.
std::string IdentityOf(const Engine& engine) {
  const Arithmetic arithmetic = engine.arithmetic();
  return fmt::format("weights {}, {} {} {}, kv {}, chunks of {}, pages of {}{}", engine.source_hash(),
                     arithmetic.backend, arithmetic.isa, arithmetic.compute, arithmetic.kv_dtype,
                     arithmetic.chunk_tokens, engine.page_tokens(),
                     arithmetic.batch_invariant ? ", batch-invariant" : "");
}

// Whether what one plan has read of a prompt serves all that read it alike: not where heads that drop tokens have pages
// of another format, or pages age by their sinks, or a model's own window has keys folded within a prompt.
PrefixStore::Sharing SharingOf(const Engine& engine) {
  const std::string kv_dtype = engine.arithmetic().kv_dtype;
  const LayerWindows windows = LayerWindowsOf(engine.config());
  const bool has_window = std::ranges::any_of(windows.tokens, [](int64_t tokens) { return tokens != kNoLimit; });
  const bool has_one_format = kv_dtype.find(',') == std::string::npos && kv_dtype != "q4";
  return has_one_format && !has_window ? PrefixStore::Sharing::kReadAlike : PrefixStore::Sharing::kSamePlan;
}

ApiError UnknownPlan(std::string_view name, const std::string& model) {
  return {.status = 404,
          .message = fmt::format("plan: \"{}\" is unknown to the model {}; GET /v1/plans has a list", name, model),
          .param = "plan",
          .code = "plan_not_found"};
}

}  // namespace

bool IsPlanName(std::string_view name) {
  return !name.empty() && name.size() <= kMaxPlanName && std::ranges::all_of(name, [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '.' || c == '_' || c == '-';
  });
}

ServedModel::ServedModel(std::unique_ptr<Service> service, Options options)
    : service_(std::move(service)), options_(std::move(options)), default_plan_(kFullPlan) {}

Result<std::unique_ptr<ServedModel>> ServedModel::Create(std::unique_ptr<Service> service, Options options) {
  std::unique_ptr<ServedModel> model(new ServedModel(std::move(service), std::move(options)));
  const ModelConfig& config = model->engine().config();
  model->created_ = static_cast<int64_t>(std::time(nullptr));
  model->max_context_ = model->options_.max_context > 0 ? model->options_.max_context : config.trained_length;
  if (config.num_positions > 0 && model->max_context_ > config.num_positions) {
    return Status::InvalidInput(fmt::format("{}: max context is {}, but the model has learned {} positions",
                                            model->name(), model->max_context_, config.num_positions));
  }
  model->fingerprint_ = FingerprintOf(model->engine());
  // Jobs keep sequences between a prompt and its choices, and never for longer.
  model->service().WaitForKeptSequences();
  if (model->options_.prefix_cache_bytes > 0) {
    std::unique_ptr<SavedTexts> saved;
    if (model->options_.prefix_dir != nullptr) {
      saved = std::make_unique<SavedTexts>(model->options_.prefix_dir, IdentityOf(model->engine()));
    }
    model->prefixes_ =
        std::make_shared<PrefixStore>(model->options_.prefix_cache_bytes, std::move(saved), SharingOf(model->engine()));
    model->service().UsePrefixCache(model->prefixes_);
  }
  model->FindFormat();
  // What was asked for by name is missed; what a model just does not have is not.
  const bool is_asked = !model->options_.chat.form.empty() || model->options_.chat.chat_template;
  if (is_asked) HW_RETURN_IF_ERROR(std::move(model->chat_status_));
  const bool has_template = model->chat_format() != nullptr && model->chat_format()->is_template();
  if (!model->options_.variables.empty() && !has_template) {
    return Status::InvalidInput(
        fmt::format("{}: variables for a chat template are given, but the model has none", model->name()));
  }
  return model;
}

void ServedModel::FindFormat() {
  Result<ChatFormat> format = FindChatFormat(engine(), options_.chat);
  if (!format.ok()) {
    chat_status_ = std::move(format).status();
    return;
  }
  chat_format_ = *std::move(format);
  if (!chat_format_->is_template()) return;
  const auto names_them = [](const ChatTemplateText& text) {
    return text.source.find("developer") != std::string::npos;
  };
  tool_syntax_ = FindToolSyntax(TemplateWithTools());
  knows_developers_ = options_.chat.chat_template
                          ? names_them(*options_.chat.chat_template)
                          : std::ranges::any_of(engine().tokenizer().chat_templates(), names_them);
}

std::string_view ServedModel::TemplateWithTools() const {
  if (options_.chat.chat_template) return options_.chat.chat_template->source;
  const auto templates = engine().tokenizer().chat_templates();
  auto chosen = std::ranges::find(templates, "tool_use", &ChatTemplateText::name);
  if (chosen == templates.end()) chosen = std::ranges::find(templates, "default", &ChatTemplateText::name);
  return chosen == templates.end() ? std::string_view() : std::string_view(chosen->source);
}

Result<const GrammarCompiler*> ServedModel::Grammars() const {
  const std::lock_guard lock(grammars_mutex_);
  if (grammars_ == nullptr) {
    if (!engine().has_tokenizer())
      return Status::Unsupported("the model has no tokenizer, whose texts grammars are of");
    HW_ASSIGN_OR_RETURN(grammars_, GrammarCompiler::Create(engine().tokenizer(), engine().config().vocab_size));
  }
  return grammars_.get();
}

ApiResult<NamedPlan> ServedModel::FindPlan(std::string_view name) const {
  const std::lock_guard lock(mutex_);
  const std::string_view wanted = name.empty() ? std::string_view(default_plan_) : name;
  if (wanted == kFullPlan) return NamedPlan{.name = kFullPlan, .plan = nullptr};
  const auto it = std::ranges::find(plans_, wanted, &NamedPlan::name);
  if (it == plans_.end()) return UnknownPlan(wanted, options_.name);
  return *it;
}

std::vector<NamedPlan> ServedModel::ListPlans() const {
  const std::lock_guard lock(mutex_);
  std::vector<NamedPlan> plans = {{.name = kFullPlan, .plan = nullptr}};
  plans.insert(plans.end(), plans_.begin(), plans_.end());
  return plans;
}

std::string ServedModel::default_plan() const {
  const std::lock_guard lock(mutex_);
  return default_plan_;
}

std::optional<ApiError> ServedModel::AddPlan(const std::string& name, HeadPlan plan, const std::string& origin) {
  if (!IsPlanName(name)) {
    return InvalidField("name", fmt::format("name: is \"{}\", expected 1 to {} letters, digits, \".\", \"_\" or \"-\"",
                                            name, kMaxPlanName));
  }
  const Status fits = CheckPlanFits(plan, engine().shape(), origin);
  if (!fits.ok()) return InvalidField("plan", fits.message());
  if (plan.source_hash && *plan.source_hash != engine().source_hash()) {
    engine().Warn(fmt::format("{}: the plan was made on other weights of this shape (hash {}, this model's is {})",
                              origin, *plan.source_hash, engine().source_hash()));
  }
  auto shared = std::make_shared<const HeadPlan>(std::move(plan));
  const std::lock_guard lock(mutex_);
  const bool is_taken = name == kFullPlan || std::ranges::find(plans_, name, &NamedPlan::name) != plans_.end();
  if (is_taken) {
    return ApiError{.status = 409,
                    .message = fmt::format("name: there is a plan \"{}\" already, expected another name", name),
                    .param = "name",
                    .code = "plan_exists"};
  }
  if (plans_.size() == kMaxPlans) {
    return InvalidField("name", fmt::format("there are {} plans, expected less before one more", kMaxPlans));
  }
  plans_.push_back({.name = name, .plan = std::move(shared)});
  return std::nullopt;
}

std::optional<ApiError> ServedModel::RemovePlan(std::string_view name) {
  if (name == kFullPlan) return InvalidField("plan", "plan: \"full\" is always there, expected another");
  const std::lock_guard lock(mutex_);
  const auto it = std::ranges::find(plans_, name, &NamedPlan::name);
  if (it == plans_.end()) return UnknownPlan(name, options_.name);
  if (prefixes_ != nullptr) prefixes_->Forget(*it->plan);
  plans_.erase(it);
  if (default_plan_ == name) default_plan_ = kFullPlan;
  return std::nullopt;
}

void ServedModel::SetDefaultPlan(const std::string& name) {
  const std::lock_guard lock(mutex_);
  default_plan_ = name;
}

void ServedModel::FetchPrefix(const HeadPlan* plan, std::span<const int32_t> ids) const {
  if (prefixes_ == nullptr || options_.prefix_dir == nullptr) return;
  if (plan != nullptr) return prefixes_->Fetch(*plan, ids);
  prefixes_->Fetch(HeadPlan::Dense(engine().shape()), ids);
}

void ServedModel::Shutdown(std::chrono::milliseconds grace) {
  service().Shutdown(grace);
  if (prefixes_ != nullptr) prefixes_->SaveAll();
}

Status ModelHost::Add(std::unique_ptr<ServedModel> model) {
  for (const auto& other : models_) {
    if (other->name() != model->name()) continue;
    return Status::InvalidInput(fmt::format("two models are called \"{}\", expected different names", model->name()));
  }
  models_.push_back(std::move(model));
  return Status::Ok();
}

ApiResult<ServedModel*> ModelHost::Find(std::string_view name) const {
  if (name.empty()) return models_.front().get();
  const auto it = std::ranges::find(models_, name, [](const auto& model) -> std::string_view { return model->name(); });
  if (it != models_.end()) return it->get();
  return ApiError{.status = 404,
                  .message = fmt::format("The model `{}` does not exist; GET /v1/models has a list", name),
                  .param = "model",
                  .code = "model_not_found"};
}

void ModelHost::Shutdown(std::chrono::milliseconds grace) {
  const auto deadline = std::chrono::steady_clock::now() + grace;
  for (const auto& model : models_) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
    model->Shutdown(std::max(left, std::chrono::milliseconds(0)));
  }
}

}  // namespace headwise
