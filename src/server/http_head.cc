#include "server/http_head.h"

#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <iterator>

namespace headwise {
namespace {

struct Reason {
  int status;
  std::string_view phrase;
};
constexpr Reason kReasons[] = {
    {200, "OK"},
    {201, "Created"},
    {202, "Accepted"},
    {204, "No Content"},
    {301, "Moved Permanently"},
    {302, "Found"},
    {304, "Not Modified"},
    {307, "Temporary Redirect"},
    {308, "Permanent Redirect"},
    {400, "Bad Request"},
    {401, "Unauthorized"},
    {403, "Forbidden"},
    {404, "Not Found"},
    {405, "Method Not Allowed"},
    {406, "Not Acceptable"},
    {408, "Request Timeout"},
    {409, "Conflict"},
    {413, "Content Too Large"},
    {415, "Unsupported Media Type"},
    {417, "Expectation Failed"},
    {422, "Unprocessable Content"},
    {429, "Too Many Requests"},
    {431, "Request Header Fields Too Large"},
    {500, "Internal Server Error"},
    {501, "Not Implemented"},
    {503, "Service Unavailable"},
    {504, "Gateway Timeout"},
};

std::string_view ReasonOf(int status) {
  for (const Reason& reason : kReasons) {
    if (reason.status == status) return reason.phrase;
  }
  return "Status";
}

constexpr std::string_view kTokenSigns = "!#$%&'*+-.^_`|~";

bool IsToken(std::string_view name) {
  return !name.empty() && std::all_of(name.begin(), name.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           kTokenSigns.find(c) != std::string_view::npos;
  });
}

bool EqualsIgnoringCase(std::string_view a, std::string_view b) {
  const auto lower = [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; };
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [&](char x, char y) { return lower(x) == lower(y); });
}

bool IsCarriers(std::string_view name) {
  constexpr std::string_view kNames[] = {"connection", "content-length",    "content-type", "date",   "keep-alive",
                                         "server",     "transfer-encoding", "trailer",      "upgrade"};
  return std::any_of(std::begin(kNames), std::end(kNames),
                     [&](std::string_view known) { return EqualsIgnoringCase(name, known); });
}

void AppendField(std::string& head, std::string_view name, std::string_view value) {
  head.append(name).append(": ");
  for (const char c : value) {
    const bool is_control = static_cast<unsigned char>(c) < 0x20 || c == 0x7f;
    head += is_control && c != '\t' ? ' ' : c;
  }
  head += "\r\n";
}

// In no locale's words.
std::string HttpDate(std::time_t now) {
  constexpr const char* kDays[] = {"Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"};
  constexpr const char* kMonths[] = {"Jan", "Feb", "Mar", "Apr", "May", "Jun",
                                     "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"};
  std::tm utc = {};
  ::gmtime_r(&now, &utc);
  return fmt::format("{}, {:02} {} {:04} {:02}:{:02}:{:02} GMT", kDays[utc.tm_wday], utc.tm_mday, kMonths[utc.tm_mon],
                     utc.tm_year + 1900, utc.tm_hour, utc.tm_min, utc.tm_sec);
}

}  // namespace

bool HasNoBody(int status) {
  return status == 204 || status == 304;
}

std::string HttpHead(const HttpResponse& response, const HttpHeadOptions& options) {
  // What is no final status would leave the client waiting for one.
  const int status = response.status >= 200 && response.status <= 599 ? response.status : 500;
  std::string head = fmt::format("HTTP/1.1 {} {}\r\n", status, ReasonOf(status));
  AppendField(head, "Date", HttpDate(std::time(nullptr)));
  AppendField(head, "Server", "headwise");
  if (!response.content_type.empty() && options.end != BodyEnd::kNoBody) {
    AppendField(head, "Content-Type", response.content_type);
  }
  if (options.end == BodyEnd::kLength) AppendField(head, "Content-Length", std::to_string(response.body.size()));
  if (options.end == BodyEnd::kChunks) AppendField(head, "Transfer-Encoding", "chunked");
  if (!options.keep_alive) {
    AppendField(head, "Connection", "close");
  } else if (options.is_http_1_0) {
    AppendField(head, "Connection", "keep-alive");
  }
  for (const HttpField& field : response.fields) {
    if (IsToken(field.name) && !IsCarriers(field.name)) AppendField(head, field.name, field.value);
  }
  return head += "\r\n";
}

}  // namespace headwise
