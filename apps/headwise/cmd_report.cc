// headwise eval report: run folders as one page for people, a table for programs, or tables for documents.
#include <fmt/format.h>

#include <filesystem>
#include <iterator>
#include <string>
#include <utility>
#include <vector>

#include "base/file.h"
#include "commands.h"
#include "report/report.h"
#include "report/report_run.h"
#include "report/tables.h"

namespace headwise {
namespace {

namespace fs = std::filesystem;

struct ReportOptions {
  std::vector<std::string> folders;
  std::string out;
  std::string csv;
  std::string markdown;
};

Status RunReport(const ReportOptions& options) {
  if (options.out.empty() && options.csv.empty() && options.markdown.empty()) {
    return Status::InvalidInput("eval report: nothing to write, expected --out, --csv or --markdown");
  }
  const std::pair<const char*, const std::string&> outputs[] = {
      {"--out", options.out}, {"--csv", options.csv}, {"--markdown", options.markdown}};
  for (size_t i = 0; i < std::size(outputs); ++i) {
    for (size_t j = 0; j < i; ++j) {
      const auto& [name, path] = outputs[i];
      if (path.empty() || fs::absolute(path).lexically_normal() != fs::absolute(outputs[j].second).lexically_normal()) {
        continue;
      }
      return Status::InvalidInput(
          fmt::format("eval report: {} and {} are both {}, expected files of their own", outputs[j].first, name, path));
    }
  }
  HW_ASSIGN_OR_RETURN(const std::vector<ReportRun> runs, LoadReportRuns(options.folders));
  if (!options.out.empty()) HW_RETURN_IF_ERROR(WriteFileAtomically(options.out, RenderReport(runs)));
  if (!options.csv.empty()) HW_RETURN_IF_ERROR(WriteFileAtomically(options.csv, ToCsv(runs)));
  if (!options.markdown.empty()) HW_RETURN_IF_ERROR(WriteFileAtomically(options.markdown, ToMarkdown(runs)));
  return Status::Ok();
}

}  // namespace

void AddReportTask(CommandLine& line, CLI::App& eval) {
  auto options = std::make_shared<ReportOptions>();
  CLI::App& command =
      *eval.add_subcommand("report", "Show finished and unfinished runs as one HTML file, CSV or Markdown");
  command.add_option("runs", options->folders, "Run folders (--out of eval), or folders that hold some")->required();
  command.add_option("--out", options->out, "HTML file to write: opens anywhere, needs nothing else");
  command.add_option("--csv", options->csv, "CSV file to write: a row per plan, length and metric");
  command.add_option("--markdown", options->markdown, "Markdown file to write: a summary and a table per run");
  OnChosen(line, command, std::move(options), RunReport);
}

}  // namespace headwise
