#include "eval/subjects.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <set>
#include <utility>

#include "base/sha256.h"
#include "model/model_config.h"
#include "planner/planner.h"

namespace headwise {
namespace {

// For a file's name: what a shell or a report could trip over becomes "-", and no file system takes names of any
// length.
std::string FileNameOf(const std::string& name) {
  constexpr size_t kMaxBytes = 100;
  std::string safe = name.substr(0, kMaxBytes);
  for (char& c : safe) {
    const bool is_plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
                          c == '@' || c == '_' || c == '-';
    if (!is_plain) c = '-';
  }
  return safe;
}

Subject AsGiven(const GivenPlan& given) {
  Subject subject;
  subject.info.name = given.name;
  if (!given.plan) {
    subject.info.method = kFullPlan;
    subject.plans[0] = nullptr;
    return subject;
  }
  subject.info.method = given.plan->method;
  subject.info.files[0] = FileNameOf(given.name);
  subject.plans[0] = std::make_shared<const HeadPlan>(*given.plan);
  return subject;
}

Result<Subject> Refitted(const GivenPlan& given, double kv_ratio, std::span<const int64_t> lengths,
                         const Engine& engine) {
  Subject subject;
  subject.info.name = fmt::format("{}@{}", given.name, kv_ratio);
  subject.info.method = given.plan->method;
  subject.info.kv_ratio = kv_ratio;
  for (const int64_t length : lengths) {
    PlannerInput input = PlannerInputFor(engine);
    input.options = NamedOptions({{"kv-ratio", fmt::format("{}", kv_ratio)}, {"at", fmt::format("{}", length)}});
    auto plan = RefitPlan(*given.plan, input, given.path);
    if (!plan.ok()) return std::move(plan).status().Annotate(fmt::format("{} at {} tokens", subject.info.name, length));
    subject.info.files[length] = fmt::format("{}-{}", FileNameOf(subject.info.name), length);
    subject.plans[length] = std::make_shared<const HeadPlan>(*std::move(plan));
  }
  return subject;
}

// From names to files of the run's folder. One file is one content: it stands for the plan's identity in the manifest,
// and what another plan has taken, be it only in another case of letters, gets this one's hash behind it.
void PlaceFiles(std::vector<Subject>& subjects) {
  std::map<std::string, std::string> hash_of;  // by name in small letters
  for (Subject& subject : subjects) {
    for (auto& [length, file] : subject.info.files) {
      const std::string hash = Sha256Hex(SerializeHeadPlan(*subject.plans.at(length)));
      std::string small = file;
      std::ranges::transform(small, small.begin(), [](char c) { return c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c; });
      const std::string& taken_by = hash_of.try_emplace(small, hash).first->second;
      if (taken_by != hash) file += fmt::format("-{}", hash);
      file = fmt::format("{}/{}.json", kPlansFolder, file);
    }
  }
}

}  // namespace

PlannerInput PlannerInputFor(const Engine& engine) {
  PlannerInput input;
  input.shape = engine.shape();
  input.source_hash = engine.source_hash();
  input.windows = LayerWindowsOf(engine.config());
  return input;
}

Result<std::vector<GivenPlan>> ReadPlans(std::span<const std::string> paths, const Engine& engine) {
  std::vector<GivenPlan> plans;
  std::set<std::string> seen;
  for (const std::string& path : paths) {
    if (!seen.insert(path).second) return Status::InvalidInput(fmt::format("--plan: {} is given twice", path));
    GivenPlan given{.name = path, .path = path, .plan = std::nullopt};
    if (path != kFullPlan) {
      HW_ASSIGN_OR_RETURN(given.plan, ReadPlanFor(engine, path));
      given.name = std::filesystem::path(path).stem().string();
    }
    plans.push_back(std::move(given));
  }
  std::vector<std::string> names = {kFullPlan};
  for (const GivenPlan& given : plans) {
    if (given.plan) names.push_back(given.name);
  }
  for (GivenPlan& given : plans) {
    if (std::ranges::count(names, given.name) > 1) given.name = given.path;
  }
  return plans;
}

Result<std::vector<Subject>> MakeSubjects(std::span<const GivenPlan> plans, std::span<const double> kv_ratios,
                                          std::span<const int64_t> lengths, const Engine& engine) {
  std::set<double> seen;
  for (const double kv_ratio : kv_ratios) {
    if (!(kv_ratio > 0 && kv_ratio <= 1) || !seen.insert(kv_ratio).second) {
      return Status::InvalidInput(fmt::format("--kv-ratio: found {}, expected different numbers above 0 and up to 1",
                                              fmt::join(kv_ratios, ",")));
    }
  }
  std::vector<Subject> subjects;
  for (const GivenPlan& given : plans) {
    if (kv_ratios.empty() || !given.plan) {
      subjects.push_back(AsGiven(given));
      continue;
    }
    for (const double kv_ratio : kv_ratios) {
      HW_ASSIGN_OR_RETURN(Subject subject, Refitted(given, kv_ratio, lengths, engine));
      subjects.push_back(std::move(subject));
    }
  }
  PlaceFiles(subjects);
  return subjects;
}

}  // namespace headwise
