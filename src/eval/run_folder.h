// The folder of one evaluation: what was asked (manifest.json), one line per finished case (results.jsonl) and the
// outcome (summary.json). A run that was interrupted goes on where it stopped.
#ifndef HEADWISE_EVAL_RUN_FOLDER_H_
#define HEADWISE_EVAL_RUN_FOLDER_H_

#include <headwise/status.h>

#include <cstdio>
#include <filesystem>
#include <memory>
#include <vector>

#include "base/json.h"

namespace headwise {

class RunFolder {
 public:
  enum class Mode {
    kNew,     // a folder that already holds a run is refused: results are never mixed or lost
    kResume,  // goes on with the run there, if its manifest is the same; otherwise refused, naming what differs
  };

  // Creates the folder where there is none. `manifest` is a JSON object of everything that decides the results.
  static Result<RunFolder> Open(const std::filesystem::path& path, const Json& manifest, Mode mode);

  // Lines that an earlier run wrote.
  const std::vector<Json>& finished() const { return finished_; }
  // One line, on disk when this returns.
  Status Append(const Json& result);
  Status WriteSummary(const Json& summary);

 private:
  struct CloseFile {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };

  std::filesystem::path path_;
  std::vector<Json> finished_;
  std::unique_ptr<std::FILE, CloseFile> results_;
};

}  // namespace headwise

#endif  // HEADWISE_EVAL_RUN_FOLDER_H_
