// Any bytes as a request on a connection: refused with an answer, unfinished, or a request within the limits; and
// however the bytes are cut into pieces, the same request with the same bytes behind it. The first byte says how they
// are cut.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "base/check.h"
#include "server/request_reader.h"
#include "text/utf8.h"

namespace headwise {
namespace {

using State = RequestReader::State;

// So short that a fuzzer gets behind them.
constexpr int64_t kHeaderBytes = 400;
constexpr int64_t kBodyBytes = 100;

struct Outcome {
  State state = State::kHeader;
  HttpRequest request;  // where it is done
  std::string left;     // what belongs to the next one
};

// As a connection does: what the reader leaves stands in front of the next piece.
Outcome ReadInPieces(std::string_view bytes, size_t piece_size) {
  RequestReader reader(kHeaderBytes, kBodyBytes);
  Outcome outcome;
  while (!bytes.empty() && (reader.state() == State::kHeader || reader.state() == State::kBody)) {
    outcome.left += bytes.substr(0, piece_size);
    bytes.remove_prefix(std::min(piece_size, bytes.size()));
    const size_t taken = reader.Read(outcome.left);
    HW_CHECK(taken <= outcome.left.size());
    outcome.left.erase(0, taken);
    HW_CHECK(reader.state() == State::kDone || reader.state() == State::kRefused ||
                 outcome.left.size() < static_cast<size_t>(kHeaderBytes),
             "{} bytes wait for their end", outcome.left.size());
  }
  outcome.left += bytes;
  outcome.state = reader.state();
  if (outcome.state == State::kRefused) {
    HW_CHECK(reader.refusal_status() >= 400 && reader.refusal_status() < 600, "status {}", reader.refusal_status());
    HW_CHECK(!reader.refusal_message().empty());
  }
  if (outcome.state == State::kDone) {
    reader.keep_alive();
    outcome.request = reader.TakeRequest();
  }
  return outcome;
}

void CheckRequest(const HttpRequest& request) {
  HW_CHECK(!request.method.empty());
  HW_CHECK(request.path.starts_with("/"), "{}", request.path);
  HW_CHECK(!FindInvalidUtf8(request.path), "a path that is no text");
  for (const std::string_view segment : {"/../", "/./"}) {
    HW_CHECK((request.path + "/").find(segment) == std::string::npos, "{}", request.path);
  }
  HW_CHECK(request.body.size() <= static_cast<size_t>(kBodyBytes), "{} bytes of body", request.body.size());
  size_t field_bytes = 0;
  for (const HttpField& field : request.fields) field_bytes += field.name.size() + field.value.size();
  HW_CHECK(field_bytes <= static_cast<size_t>(kHeaderBytes), "{} bytes of fields", field_bytes);
}

bool IsSame(const HttpRequest& one, const HttpRequest& other) {
  const auto is_same_field = [](const HttpField& a, const HttpField& b) {
    return a.name == b.name && a.value == b.value;
  };
  return one.method == other.method && one.path == other.path && one.query == other.query && one.body == other.body &&
         std::ranges::equal(one.fields, other.fields, is_same_field);
}

}  // namespace
}  // namespace headwise

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using headwise::State;
  if (size == 0) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  const headwise::Outcome whole = headwise::ReadInPieces(bytes, std::max<size_t>(bytes.size(), 1));
  const headwise::Outcome cut = headwise::ReadInPieces(bytes, size_t{1} + data[0] % 32);
  HW_CHECK((whole.state == State::kDone) == (cut.state == State::kDone), "done or not depends on the pieces");
  if (whole.state == State::kDone) {
    headwise::CheckRequest(whole.request);
    HW_CHECK(headwise::IsSame(whole.request, cut.request), "another request in pieces");
    HW_CHECK(whole.left == cut.left, "{} bytes are left, {} in pieces", whole.left.size(), cut.left.size());
  }
  return 0;
}
