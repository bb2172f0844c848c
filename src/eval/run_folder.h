// The folder of one evaluation while it is written (eval/run_data.h says what is in it). A run that was interrupted
// goes on where it stopped.
#ifndef HEADWISE_EVAL_RUN_FOLDER_H_
#define HEADWISE_EVAL_RUN_FOLDER_H_

#include <headwise/head_plan.h>
#include <headwise/status.h>

#include <cstdio>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "eval/run_data.h"

namespace headwise {

class RunFolder {
 public:
  enum class Mode {
    kNew,     // a folder that already holds a run is refused: results are never mixed or lost
    kResume,  // goes on with the run there, if its manifest is the same but for the environment; otherwise refused,
              // naming what differs. Of the options of the engine what they became is compared (kArithmeticKey)
  };

  // Creates the folder where there is none, with its manifest and its cases.
  static Result<RunFolder> Open(const std::filesystem::path& path, const RunInfo& info, std::span<const CaseText> cases,
                                Mode mode);

  // What a person should know who goes on with the run; usually empty.
  const std::string& warning() const { return warning_; }
  // Results that an earlier run wrote.
  const std::vector<CaseResult>& finished() const { return finished_; }
  // One line, on disk when this returns.
  Status Append(const CaseResult& result);
  // `file` as in PlanInfo::files.
  Status WritePlan(const std::string& file, const HeadPlan& plan);
  Status WriteSummary(const Json& summary);

 private:
  struct CloseFile {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };

  // Appends from here on, alone: two processes that go on with one run would do everything twice.
  Status OpenResults();

  std::filesystem::path path_;
  std::string warning_;
  std::vector<CaseResult> finished_;
  std::unique_ptr<std::FILE, CloseFile> results_;
};

}  // namespace headwise

#endif  // HEADWISE_EVAL_RUN_FOLDER_H_
