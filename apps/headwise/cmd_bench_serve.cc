// headwise bench serve: load on any server that speaks OpenAI's /v1/completions, and how it bore it.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <memory>
#include <optional>
#include <utility>

#include "base/file.h"
#include "base/progress.h"
#include "bench_common.h"
#include "commands.h"
#include "common_options.h"
#include "generate.h"
#include "loadgen/completion_stream.h"
#include "loadgen/load_json.h"
#include "loadgen/load_report.h"
#include "loadgen/load_run.h"
#include "option_checks.h"
#include "output.h"
#include "server/access.h"
#include "terminal_line.h"

namespace headwise {
namespace {

constexpr int64_t kMostRequests = 1'000'000;
constexpr int64_t kMostPromptTokens = int64_t{1} << 26;
// Lists of the memory of a run; a server would not take as many.
constexpr int64_t kMostPrefixes = 100'000;

struct BenchServeOptions {
  std::string base_url = "http://127.0.0.1:8080";
  std::string model;
  std::string api_key;
  std::string api_key_file;
  std::string tls_ca;
  bool tls_insecure = false;
  int64_t num_prompts = 100;
  bool has_num_prompts = false;
  std::string request_rate = "inf";
  int64_t max_concurrency = 0;
  RandomPromptOptions random;
  std::string prompts;
  std::string prompt_form = "auto";
  bool ignore_eos = false;
  double temperature = 0;
  std::string plan;
  std::string extra_body;
  int64_t num_warmups = 1;
  double timeout = 600;
  std::string out;
  std::string report;
  bool json = false;
};

Result<double> ParseRate(const std::string& text) {
  char* end = nullptr;
  const double rate = std::strtod(text.c_str(), &end);
  if (end == text.c_str() || *end != '\0' || !(rate > 0)) {
    return Status::InvalidInput(
        fmt::format("--request-rate: found \"{}\", expected requests a second, more than 0, or inf", text));
  }
  return rate;
}

Status Check(const BenchServeOptions& options) {
  HW_RETURN_IF_ERROR(CheckRange("--num-prompts", options.num_prompts, 1, kMostRequests));
  HW_RETURN_IF_ERROR(CheckRange("--max-concurrency", options.max_concurrency, 0, kMostRequests));
  HW_RETURN_IF_ERROR(CheckRange("--random-input-len", options.random.input_tokens, 1, kMostPromptTokens));
  HW_RETURN_IF_ERROR(CheckRange("--random-output-len", options.random.output_tokens, 1, kMostPromptTokens));
  HW_RETURN_IF_ERROR(CheckRange("--random-prefix-len", options.random.prefix_tokens, 0, kMostPromptTokens));
  HW_RETURN_IF_ERROR(CheckRange("--num-prefixes", options.random.num_prefixes, 1, kMostPrefixes));
  HW_RETURN_IF_ERROR(CheckRange("--num-warmups", options.num_warmups, 0, kMostRequests));
  if (!(options.random.range_ratio >= 0 && options.random.range_ratio < 1)) {
    return Status::InvalidInput(
        fmt::format("--random-range-ratio: found {}, expected 0 to less than 1", options.random.range_ratio));
  }
  constexpr double kDay = 24 * 3600;
  if (!(options.timeout > 0 && options.timeout <= kDay)) {
    return Status::InvalidInput(
        fmt::format("--timeout: found {}, expected more than 0, at most {}", options.timeout, kDay));
  }
  for (const std::string& path : {options.out, options.report}) {
    if (!path.empty()) HW_RETURN_IF_ERROR(CheckWritable(path));
  }
  return Status::Ok();
}

Result<std::unique_ptr<HttpClient>> OpenClient(const BenchServeOptions& options) {
  auto target = ParseBaseUrl(options.base_url);
  if (!target.ok()) return std::move(target).status().Annotate("--base-url");
  HttpClientOptions client{.target = *std::move(target),
                           .tls_authorities = options.tls_ca,
                           .tls_verifies = !options.tls_insecure,
                           .api_key = options.api_key};
  client.patience = std::chrono::milliseconds(static_cast<int64_t>(std::ceil(options.timeout * 1e3)));
  if (!options.api_key_file.empty()) {
    HW_ASSIGN_OR_RETURN(const std::vector<std::string> keys, ReadKeyFile(options.api_key_file));
    client.api_key = keys.front();
  }
  return HttpClient::Open(client);
}

// Messages open with the server's address.
Result<HttpClient::Reply> Ask(HttpClient& client, const BenchServeOptions& options, const HttpCallRequest& request) {
  auto reply = client.Ask(request);
  if (!reply.ok()) return std::move(reply).status().Annotate(options.base_url);
  return reply;
}

// The one that was named, or the server's first.
Result<std::string> FindModel(HttpClient& client, const BenchServeOptions& options) {
  if (!options.model.empty()) return options.model;
  HW_ASSIGN_OR_RETURN(const HttpClient::Reply reply, Ask(client, options, {.path = "/v1/models"}));
  const auto unnamed = [&](const std::string& what) {
    return Status::InvalidInput(
        fmt::format("{}/v1/models: {}, expected a list of models; --model names one", options.base_url, what));
  };
  if (reply.status != 200) return unnamed(fmt::format("status {}: {}", reply.status, ErrorMessageOf(reply.body)));
  const Json json = Json::parse(reply.body, nullptr, false);
  if (!json.is_object() || !json.contains("data") || !json["data"].is_array() || json["data"].empty() ||
      !json["data"][0].is_object() || !json["data"][0].contains("id") || !json["data"][0]["id"].is_string()) {
    return unnamed(fmt::format("found {}", ErrorMessageOf(reply.body)));
  }
  return json["data"][0]["id"].get<std::string>();
}

// Ids that the server's tokenizer makes of plain text; empty where it does not tell.
Result<std::vector<int32_t>> AskForIds(HttpClient& client, const BenchServeOptions& options, const std::string& model) {
  const std::string text = TextOfManyTokens();
  const Json shapes[] = {{{"model", model}, {"prompt", text}, {"add_special_tokens", false}}, {{"content", text}}};
  for (const Json& shape : shapes) {
    HW_ASSIGN_OR_RETURN(const HttpClient::Reply reply,
                        Ask(client, options, {.method = "POST", .path = "/tokenize", .body = shape.dump()}));
    if (reply.status != 200) continue;
    std::vector<int32_t> ids = IdsOfTokenizeReply(reply.body);
    if (!ids.empty()) return ids;
  }
  return std::vector<int32_t>();
}

// What requests ask, and what was made of the options on the way.
struct Asked {
  std::vector<LoadPrompt> from_file;
  std::optional<RandomPrompts> random;  // warm-ups too
  std::string form;                     // "ids", "text", or of a file "as given"
  int64_t num_prompts = 0;

  LoadPrompt Prompt(int64_t request) const {
    return from_file.empty() ? random->Make(request) : from_file[static_cast<size_t>(request)];
  }
};

Result<Asked> MakePrompts(HttpClient& client, const BenchServeOptions& options, const std::string& model) {
  Asked asked;
  asked.num_prompts = options.num_prompts;
  std::vector<int32_t> ids;
  if (!options.prompts.empty()) {
    HW_ASSIGN_OR_RETURN(const std::string text, ReadFile(options.prompts));
    HW_ASSIGN_OR_RETURN(asked.from_file, ParseLoadPrompts(text, options.prompts, options.random.output_tokens));
    const auto num_lines = static_cast<int64_t>(asked.from_file.size());
    if (!options.has_num_prompts) asked.num_prompts = num_lines;
    if (asked.num_prompts > num_lines) {
      return Status::InvalidInput(fmt::format("--num-prompts: found {}, expected at most the {} of {}",
                                              asked.num_prompts, num_lines, options.prompts));
    }
    asked.form = "as given";
  } else if (options.prompt_form != "text") {
    HW_ASSIGN_OR_RETURN(ids, AskForIds(client, options, model));
    if (ids.empty() && options.prompt_form == "ids") {
      return Status::InvalidInput(fmt::format(
          "--prompt-form ids: {}/tokenize told no ids of a text, expected a server that does", options.base_url));
    }
  }
  if (asked.form.empty()) asked.form = ids.empty() ? "text" : "ids";
  RandomPromptOptions random = options.random;
  // What warms up beside a file is a short text of its own.
  if (!options.prompts.empty()) random = {.input_tokens = 32, .output_tokens = 8, .seed = options.random.seed};
  asked.random.emplace(random, std::move(ids));
  return asked;
}

Result<Json> MakeBody(const BenchServeOptions& options, const std::string& model) {
  Json body = {{"model", model}, {"temperature", options.temperature}, {"stream_options", {{"include_usage", true}}}};
  if (options.ignore_eos) body["ignore_eos"] = true;
  if (!options.plan.empty()) body["plan"] = options.plan;
  if (!options.extra_body.empty()) {
    HW_ASSIGN_OR_RETURN(const Json extra, ParseJson(options.extra_body, "--extra-body"));
    if (!extra.is_object()) return Status::InvalidInput("--extra-body: found no JSON object, expected one");
    for (const auto& [key, value] : extra.items()) {
      if (value.is_null()) {
        body.erase(key);
      } else {
        body[key] = value;
      }
    }
  }
  return body;
}

Json ConfigJson(const BenchServeOptions& options, const Asked& asked, const Json& body) {
  Json config = {{"base_url", options.base_url},
                 {"model", body.value("model", Json())},
                 {"num_prompts", asked.num_prompts},
                 {"request_rate", options.request_rate},
                 {"max_concurrency", options.max_concurrency},
                 {"prompt_form", asked.form},
                 {"body", body},
                 {"num_warmups", options.num_warmups},
                 {"timeout", options.timeout},
                 {"seed", options.random.seed}};
  if (!options.prompts.empty()) {
    config["prompts"] = options.prompts;
    return config;
  }
  config["random_input_len"] = options.random.input_tokens;
  config["random_output_len"] = options.random.output_tokens;
  config["random_range_ratio"] = options.random.range_ratio;
  config["random_prefix_len"] = options.random.prefix_tokens;
  config["num_prefixes"] = options.random.num_prefixes;
  return config;
}

// "3 x http_500, 1 x reset; request 2: ...": what became of failures, and the first of them in its own words.
std::string FailureText(std::span<const LoadRecord> records) {
  std::string text;
  for (const auto& [kind, count] : Summarise(records).failures) {
    text += fmt::format("{}{} x {}", text.empty() ? "" : ", ", count, kind);
  }
  for (const LoadRecord& record : records) {
    if (!record.ok()) return fmt::format("{}; request {}: {}", text, record.request, record.message);
  }
  return text;
}

Status WarmUp(HttpClient& client, const BenchServeOptions& options, const Asked& asked, const Json& body,
              const InterruptGuard& guard) {
  if (options.num_warmups == 0) return Status::Ok();
  LoadSchedule schedule(std::vector<double>(static_cast<size_t>(options.num_warmups), 0.0), 1);
  const LoadRunResult result = RunLoad(client, std::move(schedule),
                                       {.body = body,
                                        .prompt = [&](int64_t request) { return asked.random->MakeWarmup(request); },
                                        .stop_fd = guard.fd()});
  if (result.is_stopped) return Status::Cancelled("ended while warming up");
  for (const LoadRecord& record : result.records) {
    if (!record.ok()) {
      return Status::Io(fmt::format("{}: the request that warms up failed: {}: {}", options.base_url, record.failure,
                                    record.message));
    }
  }
  return Status::Ok();
}

void PrintFigures(std::span<const LoadRecord> records) {
  const auto facts = LoadFacts(records);
  size_t width = 0;
  for (const auto& [name, value] : facts) width = std::max(width, name.size());
  for (const auto& [name, value] : facts) Print("{:<{}}  {:>12}\n", name, width, value);
  Print("\n");
  const LoadTable table = TimesTable(records);
  std::vector<TextRow> rows = {table.titles};
  for (const LoadTableRow& row : table.rows) {
    TextRow& cells = rows.emplace_back(TextRow{row.name});
    cells.insert(cells.end(), row.cells.begin(), row.cells.end());
  }
  PrintTable(rows);
}

Status Tell(const BenchServeOptions& options, const Asked& asked, const Json& config, const LoadRunResult& result) {
  const LoadState state = result.is_stopped ? LoadState::kStopped : LoadState::kFinished;
  if (!options.report.empty()) {
    HW_RETURN_IF_ERROR(WriteFileAtomically(options.report, RenderLoadReport(config, result.records)));
  }
  if (options.json) {
    HW_RETURN_IF_ERROR(PrintJson(LoadJson(config, result.records, state)));
  } else {
    PrintFigures(result.records);
    HW_RETURN_IF_ERROR(CheckOutput());
  }
  if (result.is_stopped) {
    return Status::Cancelled(fmt::format("ended after {} of {} requests", result.records.size(), asked.num_prompts));
  }
  const auto num_failed = std::ranges::count_if(result.records, [](const LoadRecord& record) { return !record.ok(); });
  if (num_failed == asked.num_prompts) {
    return Status::Io(fmt::format("{}: no request came whole: {}", options.base_url, FailureText(result.records)));
  }
  if (num_failed > 0) LogWarning(fmt::format("requests failed: {}", FailureText(result.records)));
  return Status::Ok();
}

Status RunBenchServe(const BenchServeOptions& options) {
  HW_RETURN_IF_ERROR(Check(options));
  HW_ASSIGN_OR_RETURN(const double rate, ParseRate(options.request_rate));
  RaiseFileLimit();
  HW_ASSIGN_OR_RETURN(const std::unique_ptr<HttpClient> client, OpenClient(options));
  HW_ASSIGN_OR_RETURN(const std::string model, FindModel(*client, options));
  HW_ASSIGN_OR_RETURN(const Json body, MakeBody(options, model));
  HW_ASSIGN_OR_RETURN(const Asked asked, MakePrompts(*client, options, model));
  const Json config = ConfigJson(options, asked, body);
  std::unique_ptr<LoadResultFile> file;
  if (!options.out.empty()) {
    HW_ASSIGN_OR_RETURN(file, LoadResultFile::Create(options.out, config));
  }
  const InterruptGuard guard;
  HW_RETURN_IF_ERROR(WarmUp(*client, options, asked, body, guard));
  LoadRunResult result;
  {
    TerminalLine line;
    ProgressBar progress(&line, "bench serve", asked.num_prompts);
    LoadSchedule schedule(ArrivalTimes(asked.num_prompts, rate, options.random.seed), options.max_concurrency);
    result = RunLoad(*client, std::move(schedule),
                     {.body = body,
                      .prompt = [&](int64_t request) { return asked.Prompt(request); },
                      .on_record =
                          [&](std::span<const LoadRecord> records) {
                            progress.Update(static_cast<int64_t>(records.size()));
                            if (file != nullptr) file->Offer(records);
                          },
                      .stop_fd = guard.fd()});
  }
  if (file != nullptr) {
    const LoadState state = result.is_stopped ? LoadState::kStopped : LoadState::kFinished;
    HW_RETURN_IF_ERROR(file->Finish(result.records, state));
  }
  return Tell(options, asked, config, result);
}

void AddServerOptions(CLI::App& command, BenchServeOptions& options) {
  command.add_option("--base-url", options.base_url, "The server, http or https, with /v1 or without")
      ->capture_default_str();
  command.add_option("--model,-m", options.model, "The model's name there; without it the first of /v1/models");
  CLI::Option* key = command.add_option("--api-key", options.api_key, "Sent as Authorization: Bearer");
  command.add_option("--api-key-file", options.api_key_file, "A file with it: the command line is no secret")
      ->excludes(key);
  command.add_option("--tls-ca", options.tls_ca, "Certificates in PEM to trust in place of the system's");
  command.add_flag("--tls-insecure", options.tls_insecure, "Trust any certificate");
  command.add_option("--timeout", options.timeout, "Seconds without a byte after which a request has failed")
      ->capture_default_str();
}

void AddPromptOptions(CLI::App& command, BenchServeOptions& options) {
  RandomPromptOptions& random = options.random;
  CLI::Option* file = command.add_option("--prompts", options.prompts,
                                         "JSON lines of \"prompt\", a text or token ids, and where it has its own "
                                         "\"max_tokens\"; without it prompts are random");
  command.add_option("--random-input-len", random.input_tokens, "Tokens of a prompt behind its shared beginning")
      ->excludes(file)
      ->capture_default_str();
  command
      .add_option("--random-output-len", random.output_tokens, "Tokens of an answer, also of lines without max_tokens")
      ->capture_default_str();
  command
      .add_option("--random-range-ratio", random.range_ratio,
                  "Lengths are drawn from length x (1 - ratio) to length x (1 + ratio)")
      ->excludes(file)
      ->capture_default_str();
  CLI::Option* prefix =
      command.add_option("--random-prefix-len", random.prefix_tokens, "Tokens of the beginning that prompts share")
          ->excludes(file)
          ->capture_default_str();
  command.add_option("--num-prefixes", random.num_prefixes, "Different such beginnings; each prompt has one of them")
      ->needs(prefix)
      ->capture_default_str();
  command
      .add_option("--prompt-form", options.prompt_form,
                  "Random prompts as token ids, which /tokenize has to tell of, or as words of about a token each; "
                  "auto: ids where it does")
      ->check(CLI::IsMember({"auto", "ids", "text"}))
      ->excludes(file)
      ->capture_default_str();
  command.add_option("--seed", random.seed, "Seed of prompts, lengths and arrivals")->capture_default_str();
}

}  // namespace

void AddBenchServeCommand(CommandLine& line) {
  CLI::App& bench = *line.app.get_subcommand("bench");
  auto options = std::make_shared<BenchServeOptions>();
  CLI::App& command = *bench.add_subcommand("serve", "Load on any server with OpenAI's /v1/completions");
  AddServerOptions(command, *options);
  command.add_option("--num-prompts", options->num_prompts, "Requests; of --prompts without it all")
      ->each([raw = options.get()](const std::string&) { raw->has_num_prompts = true; })
      ->capture_default_str();
  command
      .add_option("--request-rate", options->request_rate,
                  "Requests a second on average, as a Poisson process; inf: all at once")
      ->capture_default_str();
  command.add_option("--max-concurrency", options->max_concurrency, "Requests under way at most; 0: any number")
      ->capture_default_str();
  AddPromptOptions(command, *options);
  command.add_flag("--ignore-eos", options->ignore_eos,
                   "Answers go on to their full length (headwise, vLLM, llama.cpp)");
  command.add_option("--temperature", options->temperature, "Of every request")->capture_default_str();
  command.add_option("--plan", options->plan, "Head plan of every request (headwise)");
  command.add_option("--extra-body", options->extra_body,
                     "JSON object: further fields of every request; null takes one away");
  command.add_option("--num-warmups", options->num_warmups, "Requests before, one by one, that are not counted")
      ->capture_default_str();
  command.add_option("--out", options->out, "Figures and every request as JSON, written anew while it runs");
  command.add_option("--report", options->report, "Figures and charts as an HTML page");
  command.add_flag("--json", options->json, "One JSON object on standard output");
  // What `bench` itself measures is no part of it.
  for (CLI::App* group : bench.get_subcommands([](const CLI::App* app) { return app->get_name().empty(); })) {
    command.excludes(group);
  }
  for (CLI::Option* option : bench.get_options()) {
    if (option != bench.get_help_ptr()) command.excludes(option);
  }
  OnChosen(line, command, std::move(options), RunBenchServe);
}

}  // namespace headwise
