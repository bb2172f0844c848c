#include "eval/task_run.h"

#include <cmath>
#include <utility>

#include "base/check.h"
#include "kv/plan_bytes.h"
#include "model/model_config.h"

namespace headwise {
namespace {

// The share is that of f16 pages, which other formats differ little from: bounds of keys, a sixteenth of those, are f16
// in all of them.
int64_t KvReadBytes(const Engine& engine, const Subject& subject, const CaseResult& result) {
  const std::shared_ptr<const HeadPlan> plan = subject.plans.empty() ? nullptr : subject.At(result.length);
  if (plan == nullptr || !HasSelector(*plan)) return result.kv_bytes;
  const int64_t num_read = result.prompt_tokens + result.new_tokens;
  const int64_t num_tokens = num_read > 0 ? num_read : result.length;
  const LayerWindows windows = LayerWindowsOf(engine.config());
  const auto read = static_cast<double>(PlanReadBytesAt(*plan, num_tokens, windows));
  const auto kept = static_cast<double>(PlanBytesAt(*plan, num_tokens, windows));
  return kept > 0 ? std::llround(static_cast<double>(result.kv_bytes) * read / kept) : result.kv_bytes;
}

}  // namespace

const std::shared_ptr<const HeadPlan>& Subject::At(int64_t length) const {
  const auto it = plans.contains(length) ? plans.find(length) : plans.find(0);
  HW_CHECK(it != plans.end(), "plan {} has nothing for {} tokens", info.name, length);
  return it->second;
}

TaskRun::TaskRun(const Options& options)
    : engine_(options.engine),
      subjects_(options.subjects),
      folder_(options.folder),
      should_stop_(options.should_stop),
      progress_line_(options.progress),
      progress_(options.progress, options.label, options.num_results) {
  if (folder_ != nullptr) results_ = folder_->finished();
  for (const CaseResult& result : results_) {
    done_.emplace(result.plan, result.length, result.case_idx, result.question_idx);
  }
  progress_.Update(static_cast<int64_t>(results_.size()));
}

bool TaskRun::Has(const Subject& subject, int64_t length, int64_t case_idx, int64_t question_idx) const {
  return done_.contains(Key(subject.info.name, length, case_idx, question_idx));
}

Status TaskRun::Add(const Subject& subject, CaseResult result) {
  result.plan = subject.info.name;
  result.kv_read_bytes = KvReadBytes(*engine_, subject, result);
  if (folder_ != nullptr) HW_RETURN_IF_ERROR(folder_->Append(result));
  done_.emplace(result.plan, result.length, result.case_idx, result.question_idx);
  results_.push_back(std::move(result));
  progress_.Update(static_cast<int64_t>(results_.size()));
  if (should_stop_ && should_stop_()) {
    return Status::Cancelled("stopped; every finished case is kept, --resume goes on from there");
  }
  return Status::Ok();
}

}  // namespace headwise
