// headwise serve: models behind the OpenAI API.
#include <fmt/format.h>
#include <poll.h>
#include <spdlog/spdlog.h>

#include <cstdio>
#include <filesystem>
#include <utility>

#include "base/file.h"
#include "chat_options.h"
#include "commands.h"
#include "common_options.h"
#include "generate.h"
#include "option_checks.h"
#include "preset_options.h"
#include "server/access.h"
#include "server/api_server.h"
#include "server/http_server.h"
#include "server/model_host.h"

namespace headwise {
namespace {

// A quarter of the KV limit: what is kept gives way to requests, so that the rest is theirs in any case.
constexpr int64_t kChosenForLimit = -1;
constexpr int64_t kLimitShare = 4;
// Without a limit nothing gives way: what a server may take and nobody asked for is little beside its weights.
constexpr int64_t kUnlimitedPrefixBytes = int64_t{1} << 30;

struct ServeOptions {
  EngineOptions engine;  // but for the model
  PresetFlags preset;
  std::vector<std::string> models;
  std::vector<std::string> plans;
  std::string plan_dir;
  int64_t max_context = 0;
  ChatFlags chat_flags;
  std::string host = "127.0.0.1";
  int64_t port = 8080;
  std::vector<std::string> api_keys;
  std::string api_key_file;
  std::vector<std::string> allow_origins;
  std::string tls_certificate;
  std::string tls_key;
  int64_t drain_seconds = 30;
  int64_t prefix_cache_bytes = kChosenForLimit;
  bool no_prefix_cache = false;
  std::string prefix_dir;
  int64_t prefix_dir_bytes = int64_t{4} << 30;
  std::string admission = "likely";
};

struct Named {
  std::string name;
  std::string path;
};

// NAME=PATH, or a path alone, which may have such a sign in it: it is called by its last part then, without `ending`.
Named ReadNamed(const std::string& text, std::string_view ending) {
  std::error_code error;
  const size_t equals = text.find('=');
  if (equals != std::string::npos && equals > 0 && !std::filesystem::exists(text, error)) {
    return {.name = text.substr(0, equals), .path = text.substr(equals + 1)};
  }
  std::filesystem::path path = std::filesystem::path(text).lexically_normal();
  if (!path.has_filename()) path = path.parent_path();
  std::string name = path.filename().string();
  if (name.ends_with(ending)) name.resize(name.size() - ending.size());
  return {.name = std::move(name), .path = text};
}

int64_t PrefixCacheBytes(const ServeOptions& options) {
  if (options.no_prefix_cache) return 0;
  if (options.prefix_cache_bytes != kChosenForLimit) return options.prefix_cache_bytes;
  const int64_t limit = options.engine.kv_limit_bytes;
  return limit > 0 ? limit / kLimitShare : kUnlimitedPrefixBytes;
}

// With --preset: cache formats, a KV limit, and a default plan where none is given.
Result<ServeOptions> WithPreset(const ServeOptions& options) {
  ServeOptions chosen = options;
  if (!options.preset) return chosen;
  if (options.models.size() > 1) {
    return Status::InvalidInput(
        fmt::format("--preset: found {} models, which share the memory, expected one", options.models.size()));
  }
  std::string given;
  for (const std::string& text : options.plans) {
    if (ReadNamed(text, ".json").path == text) given = text;  // as a default; the last one is it
  }
  chosen.engine.model = ReadNamed(options.models.front(), ".gguf").path;
  HW_ASSIGN_OR_RETURN(const AppliedPreset applied,
                      ApplyPreset(options.preset, {.plan = given, .max_context = options.max_context}, chosen.engine));
  if (given.empty() && applied.plan != kFullPlan) chosen.plans.push_back(applied.plan);
  return chosen;
}

// Null where none is asked for.
Result<std::shared_ptr<PrefixDir>> OpenPrefixDir(const ServeOptions& options) {
  if (options.prefix_dir.empty()) return std::shared_ptr<PrefixDir>();
  if (PrefixCacheBytes(options) == 0) {
    return Status::InvalidInput("--prefix-dir: no prefixes are kept without memory for them, expected some");
  }
  Result<std::unique_ptr<PrefixDir>> dir = PrefixDir::Open(
      {.path = options.prefix_dir, .limit_bytes = options.prefix_dir_bytes, .warn = [](const std::string& text) {
         spdlog::warn("--prefix-dir: {}", text);
       }});
  if (!dir.ok()) return std::move(dir).status().Annotate("--prefix-dir");
  return std::shared_ptr<PrefixDir>(*std::move(dir));
}

// How many of its texts are of use to these models.
void DescribePrefixDir(const PrefixDir* dir, const ModelHost& host) {
  if (dir == nullptr || dir->num_entries() == 0) return;
  int64_t num_used = 0;
  for (const auto& model : host.models()) num_used += model->prefixes()->stats().num_disk_entries;
  fmt::print(stderr, "--prefix-dir: {} texts", num_used);
  const int64_t num_others = dir->num_entries() - num_used;
  if (num_others > 0) fmt::print(stderr, ", and {} of other weights or arithmetic, which are not used", num_others);
  fmt::print(stderr, "\n");
}

Result<std::unique_ptr<ServedModel>> LoadModel(const ServeOptions& options, const ChatSetup& chat,
                                               std::shared_ptr<PrefixDir> prefix_dir, const Named& named) {
  fmt::print(stderr, "loading {} from {}\n", named.name, named.path);
  EngineOptions engine_options = options.engine;
  engine_options.model = named.path;
  engine_options.kv_admission =
      options.admission == "likely" ? EngineOptions::KvAdmission::kLikely : EngineOptions::KvAdmission::kWorstCase;
  HW_ASSIGN_OR_RETURN(std::unique_ptr<Service> service, Service::Create(engine_options));
  HW_ASSIGN_OR_RETURN(std::unique_ptr<ServedModel> model,
                      ServedModel::Create(std::move(service), {.name = named.name,
                                                               .max_context = options.max_context,
                                                               .chat = chat.format,
                                                               .variables = chat.inputs.variables,
                                                               .prefix_cache_bytes = PrefixCacheBytes(options),
                                                               .prefix_dir = std::move(prefix_dir)}));
  fmt::print(stderr, "{}: {}, up to {} tokens, {}\n", model->name(), model->engine().backend_description(),
             model->max_context(),
             model->chat_format() != nullptr ? fmt::format("chat as {}", model->chat_format()->name())
                                             : fmt::format("no chat: {}", model->chat_status().message()));
  return model;
}

// A plan without a name of its own is what requests get that name none.
Status LoadPlan(const std::string& text, ModelHost& host) {
  const Named named = ReadNamed(text, ".json");
  const bool is_default = named.path == text;
  HW_ASSIGN_OR_RETURN(const HeadPlan plan, ReadHeadPlan(named.path));
  std::optional<ApiError> error;
  bool fits_some = false;
  for (const auto& model : host.models()) {
    // Of several models each takes those that fit.
    if (host.models().size() > 1 && !CheckPlanFits(plan, model->engine().shape(), named.path).ok()) continue;
    error = model->AddPlan(named.name, plan, named.path);
    if (error) return Status::InvalidInput(fmt::format("--plan: {}", error->message));
    if (is_default) model->SetDefaultPlan(named.name);
    fits_some = true;
    fmt::print(stderr, "{}: plan {}{}\n", model->name(), named.name, is_default ? ", the default" : "");
  }
  if (fits_some) return Status::Ok();
  return Status::InvalidInput(fmt::format("--plan: {}: fits none of the models", named.path));
}

bool IsLoopback(const std::string& host) {
  return host == "localhost" || host == "::1" || host.starts_with("127.");
}

Result<ApiOptions> ReadApiOptions(const ServeOptions& options) {
  ApiOptions api{.api_keys = options.api_keys,
                 .allow_origins = options.allow_origins,
                 .is_loopback = IsLoopback(options.host),
                 .plan_dir = options.plan_dir};
  if (!options.api_key_file.empty()) {
    HW_ASSIGN_OR_RETURN(const std::vector<std::string> keys, ReadKeyFile(options.api_key_file));
    api.api_keys.insert(api.api_keys.end(), keys.begin(), keys.end());
  }
  if (!options.plan_dir.empty() && !std::filesystem::is_directory(options.plan_dir)) {
    return Status::InvalidInput(fmt::format("--plan-dir: {} is no folder", options.plan_dir));
  }
  if (api.api_keys.empty() && !api.is_loopback) {
    spdlog::warn("whoever can reach {} may use this server: --api-key asks for a key", options.host);
  }
  return api;
}

Status Check(const ServeOptions& options) {
  HW_RETURN_IF_ERROR(CheckRange("--port", options.port, 0, 65535));
  HW_RETURN_IF_ERROR(CheckRange("--max-context", options.max_context, 0, kMaxSequenceTokens));
  HW_RETURN_IF_ERROR(CheckRange("--max-gap-ms", options.engine.max_gap_ms, 0, kMaxGapMs));
  if (options.engine.host_kv_bytes > 0 && (options.engine.kv_limit_bytes == 0 || options.admission != "likely")) {
    return Status::InvalidInput(
        "--host-kv-bytes: nobody gives way without --kv-limit-bytes, nor with --admission worst-case; expected a limit "
        "and --admission likely beside it");
  }
  HW_RETURN_IF_ERROR(CheckRange("--drain-seconds", options.drain_seconds, 0, 24 * 3600));
  if (options.tls_certificate.empty() != options.tls_key.empty()) {
    return Status::InvalidInput("--tls-cert, --tls-key: found one of the two, expected both or neither");
  }
  return Status::Ok();
}

// Until a signal asks for the end.
void AwaitSignal(const InterruptGuard& guard) {
  while (!guard.interrupted()) {
    // Without a pipe it is looked for now and then.
    pollfd wait = {.fd = guard.fd(), .events = POLLIN, .revents = 0};
    ::poll(&wait, 1, guard.fd() < 0 ? 100 : -1);
  }
}

Status RunServe(const ServeOptions& given) {
  HW_RETURN_IF_ERROR(Check(given));
  HW_ASSIGN_OR_RETURN(const ServeOptions options, WithPreset(given));
  RaiseFileLimit();
  HW_ASSIGN_OR_RETURN(ApiOptions api_options, ReadApiOptions(options));
  HW_ASSIGN_OR_RETURN(const ChatSetup chat, ReadChatSetup(options.chat_flags));
  HW_ASSIGN_OR_RETURN(const std::shared_ptr<PrefixDir> prefix_dir, OpenPrefixDir(options));
  ModelHost host;
  for (const std::string& text : options.models) {
    HW_ASSIGN_OR_RETURN(std::unique_ptr<ServedModel> model,
                        LoadModel(options, chat, prefix_dir, ReadNamed(text, ".gguf")));
    HW_RETURN_IF_ERROR(host.Add(std::move(model)));
  }
  DescribePrefixDir(prefix_dir.get(), host);
  for (const std::string& text : options.plans) HW_RETURN_IF_ERROR(LoadPlan(text, host));

  const InterruptGuard guard(InterruptGuard::Signals::kInterruptAndTermination);
  ApiServer api(host, std::move(api_options));
  HttpServerOptions http;
  http.host = options.host;
  http.port = static_cast<int>(options.port);
  http.tls_certificate = options.tls_certificate;
  http.tls_key = options.tls_key;
  http.check_header = [&](const HttpRequest& header) { return api.CheckHeader(header); };
  http.error_body = CarrierErrorBody;
  HW_ASSIGN_OR_RETURN(const std::unique_ptr<HttpServer> server,
                      HttpServer::Start(http, [&](const HttpRequest& request, std::shared_ptr<HttpReply> reply) {
                        api.Handle(request, std::move(reply));
                      }));
  const bool is_v6 = options.host.find(':') != std::string::npos;
  fmt::print(stderr, "listening on {}://{}:{}\n", options.tls_key.empty() ? "http" : "https",
             is_v6 ? fmt::format("[{}]", options.host) : options.host, server->port());
  AwaitSignal(guard);
  fmt::print(stderr, "stopping: answers under way have {} s; a second signal ends them\n", options.drain_seconds);
  server->Stop(std::chrono::seconds(options.drain_seconds));
  api.Shutdown();
  return Status::Ok();
}

void AddNetworkOptions(CLI::App& command, ServeOptions& options) {
  command.add_option("--host", options.host, "Address to listen on; 0.0.0.0 and :: for all")->capture_default_str();
  command.add_option("--port", options.port, "0: any that is free")->capture_default_str();
  command.add_option("--api-key", options.api_keys, "Who asks has to have one of these; may be repeated")
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->allow_extra_args(false);
  command.add_option("--api-key-file", options.api_key_file,
                     "A file of them, one a line: the command line is no secret");
  command
      .add_option("--allow-origin", options.allow_origins,
                  "Origin whose pages may ask through a browser, such as https://app.example, or * for all; may be "
                  "repeated")
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->allow_extra_args(false);
  command.add_option("--tls-cert", options.tls_certificate, "Certificate chain in PEM: HTTPS in place of HTTP");
  command.add_option("--tls-key", options.tls_key, "Its key in PEM");
  command
      .add_option("--drain-seconds", options.drain_seconds,
                  "After Ctrl-C or SIGTERM: how long answers under way may go on")
      ->capture_default_str();
}

void AddAdmissionOptions(CLI::App& command, ServeOptions& options) {
  options.engine.max_gap_ms = 100;
  command
      .add_option("--max-gap-ms", options.engine.max_gap_ms,
                  "Longest time between two tokens of a stream while others' prompts are read; 0: prompts are read in "
                  "whole chunks")
      ->capture_default_str();
  command
      .add_option("--admission", options.admission,
                  "Under --kv-limit-bytes, what a request is let in by: likely, its prompt and as long an answer as "
                  "others were, where the youngest gives way if memory ends; or worst-case")
      ->check(CLI::IsMember({"likely", "worst-case"}))
      ->capture_default_str();
  AddBytesOption(command, "--host-kv-bytes", options.engine.host_kv_bytes,
                 "Host memory for the KV pages of requests that give way; 0: their texts are read again");
}

}  // namespace

void AddServeCommand(CommandLine& line) {
  auto options = std::make_shared<ServeOptions>();
  CLI::App& command = *line.app.add_subcommand("serve", "Answer over HTTP, as OpenAI's API has it");
  AddEngineOptions(command, options->engine);
  command.remove_option(command.get_option("--model"));
  command
      .add_option("--model,-m", options->models,
                  "Model: a Hugging Face folder or a .gguf file; NAME=PATH gives it a name; may be repeated, and each "
                  "gets the options here")
      ->required()
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->allow_extra_args(false);
  command
      .add_option("--plan", options->plans,
                  "Head plan of requests that name none; NAME=PLAN: one that requests may name; may be repeated. "
                  "\"full\" is always there")
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->allow_extra_args(false);
  AddPresetOptions(command, options->preset);
  command.add_option("--plan-dir", options->plan_dir, "Folder whose plans may be loaded while it runs");
  command
      .add_option("--max-context", options->max_context,
                  "Most tokens of prompt and answer together; 0: the model's trained length")
      ->capture_default_str();
  CLI::Option* prefix_bytes =
      AddBytesOption(command, "--prefix-cache-bytes", options->prefix_cache_bytes,
                     "KV bytes for texts that requests with the same beginning go on from; 0: none. Without it a "
                     "quarter of --kv-limit-bytes, or 1 GiB");
  prefix_bytes->default_str("");
  command.add_flag("--no-prefix-cache", options->no_prefix_cache, "Every request reads its whole prompt")
      ->excludes(prefix_bytes);
  command.add_option("--prefix-dir", options->prefix_dir,
                     "Folder where such texts are kept too, so that they are there after a restart; made if need be");
  AddBytesOption(command, "--prefix-dir-bytes", options->prefix_dir_bytes, "The most that its files may come to");
  AddAdmissionOptions(command, *options);
  AddChatFormatOptions(command, options->chat_flags);
  AddNetworkOptions(command, *options);
  OnChosen(line, command, std::move(options), RunServe);
}

}  // namespace headwise
