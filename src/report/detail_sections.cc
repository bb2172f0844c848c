// What stands behind the figures: the plans, the failures, how the runs were made.
#include <fmt/format.h>

#include <map>

#include "kv/plan_svg.h"
#include "report/html.h"
#include "report/sections.h"
#include "text/escape.h"

namespace headwise {
namespace {

// ---- plans ----

// One distinct plan and everything that uses it.
struct PlanPicture {
  std::string method;
  std::string svg;
  std::vector<std::string> uses;
};

std::string UseOf(const PlanFile& file) {
  return file.length == 0 ? file.plan : fmt::format("{} at {}", file.plan, FormatLength(file.length));
}

std::string Joined(const std::vector<std::string>& texts) {
  std::string joined;
  for (const std::string& text : texts) joined += (joined.empty() ? "" : ", ") + text;
  return joined;
}

std::string PictureFigure(const PlanPicture& picture) {
  return fmt::format("<figure><figcaption>{}</figcaption>\n{}</figure>\n", EscapeXml(Joined(picture.uses)),
                     picture.svg);
}

void AddUse(std::vector<std::string>& uses, const std::string& use) {
  for (const std::string& known : uses) {
    if (known == use) return;
  }
  uses.push_back(use);
}

// ---- failures ----

std::string Pre(const std::string& title, const std::string& text) {
  return fmt::format("<p class=\"note\">{}</p><pre>{}</pre>\n", EscapeXml(title), EscapeXml(text));
}

std::string FailureTitle(const CaseResult& result) {
  std::string title =
      fmt::format("{} tokens, case {}, question {}", FormatLength(result.length), result.case_idx, result.question_idx);
  for (const auto& [tag, value] : result.tags.items()) {
    title += fmt::format(
        ", {} {}", tag,
        value.is_string() ? value.get<std::string>() : value.dump(-1, ' ', false, Json::error_handler_t::replace));
  }
  return title;
}

std::string FailureHtml(const ReportRun& run, const Failure& failure) {
  const CaseResult& result = run.data.results[failure.result_idx];
  std::string html;
  if (!failure.expected.empty()) html += Pre("Expected", Joined(failure.expected));
  html += Pre("Answer", result.answer.empty() ? "(nothing)" : result.answer);
  if (failure.place) {
    html += fmt::format("<p class=\"note\">Where it stands in the text</p><pre>{}<mark>{}</mark>{}</pre>\n",
                        EscapeXml(failure.place->before), EscapeXml(failure.place->answer),
                        EscapeXml(failure.place->after));
  }
  if (!failure.prompt_end.empty()) html += Pre("The prompt ends", failure.prompt_end);
  return Details(FailureTitle(result), html);
}

std::string PlanFailuresHtml(const ReportRun& run, const std::string& plan, const PlanFailures& failures) {
  std::string html;
  for (const Failure& failure : failures.shown) html += FailureHtml(run, failure);
  const int64_t more = failures.total - static_cast<int64_t>(failures.shown.size());
  if (more > 0) html += Paragraph(fmt::format("{} more are in results.jsonl.", more));
  return Details(fmt::format("{}: {} not right", plan, failures.total), html);
}

// ---- runs ----

std::string PlainText(const Json& value) {
  return value.is_string() ? value.get<std::string>() : value.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string RunFacts(const ReportRun& run) {
  const RunInfo& info = run.data.info;
  std::vector<std::pair<std::string, std::string>> facts = {{"folder", run.data.folder.string()},
                                                            {"task", info.task},
                                                            {"model", info.model},
                                                            {"weights' hash", info.source_hash}};
  std::vector<std::string> plans;
  for (const PlanInfo& plan : info.plans) plans.push_back(plan.name);
  facts.emplace_back("plans", Joined(plans));
  std::vector<std::string> lengths;
  for (const int64_t length : info.lengths) lengths.push_back(FormatLength(length));
  facts.emplace_back("lengths", Joined(lengths));
  facts.emplace_back("results", fmt::format("{}{}", run.data.results.size(), run.is_finished ? "" : ", unfinished"));
  for (const auto& [key, value] : info.options.items()) facts.emplace_back(key, PlainText(value));
  for (const auto& [key, value] : info.environment.items()) facts.emplace_back(key, PlainText(value));
  return Facts(facts);
}

}  // namespace

std::string PlanMapSection(const std::vector<ReportRun>& runs) {
  std::map<std::string, size_t> known;  // by the plan's own text
  std::vector<PlanPicture> pictures;
  std::vector<std::string> errors;
  for (const ReportRun& run : runs) {
    for (const PlanFile& file : run.plan_files) {
      if (!file.content) {
        AddUse(errors, fmt::format("{}: {}", UseOf(file), file.error));
        continue;
      }
      const auto [entry, is_new] = known.try_emplace(SerializeHeadPlan(*file.content), pictures.size());
      if (is_new) pictures.push_back({file.content->method, PlanSvg(*file.content, PlanSvgUse::kInPage), {}});
      AddUse(pictures[entry->second].uses, UseOf(file));
    }
  }
  std::string html;
  if (pictures.empty()) html += Paragraph("The runs hold no plan files: every head was full.");
  std::vector<std::pair<std::string, std::vector<const PlanPicture*>>> methods;
  for (const PlanPicture& picture : pictures) {
    auto method = methods.begin();
    while (method != methods.end() && method->first != picture.method) ++method;
    if (method == methods.end()) method = methods.insert(methods.end(), {picture.method, {}});
    method->second.push_back(&picture);
  }
  if (!pictures.empty()) {
    html += Paragraph("One square per layer and KV head, each distinct plan once; framed heads keep everything.");
  }
  for (const auto& [method, of_method] : methods) {
    std::string figures;
    for (const PlanPicture* picture : of_method) figures += PictureFigure(*picture);
    html += Details(fmt::format("{}: {} {}", method, of_method.size(), of_method.size() == 1 ? "plan" : "plans"),
                    SmallGrid(figures));
  }
  for (const std::string& error : errors) html += Paragraph("Not drawn: " + error);
  return html;
}

std::string FailureSection(const std::vector<ReportRun>& runs) {
  std::string html;
  for (const ReportRun& run : runs) {
    std::string plans;
    for (const PlanInfo& plan : run.data.info.plans) {
      const auto failures = run.failures.find(plan.name);
      if (failures != run.failures.end()) plans += PlanFailuresHtml(run, plan.name, failures->second);
    }
    if (!plans.empty()) html += Heading(3, TitleOf(run, runs)) + plans;
  }
  return html.empty() ? Paragraph("None: every question with a right answer was answered right.") : html;
}

std::string RunSection(const std::vector<ReportRun>& runs) {
  std::string html;
  for (const ReportRun& run : runs) html += Details(TitleOf(run, runs), RunFacts(run));
  return html;
}

}  // namespace headwise
