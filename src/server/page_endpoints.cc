// GET / and GET /page/{file}: a chat in the browser, and the heads' memory beside it. Its files are in page/.
#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>

#include "server/api_server.h"
#include "server/page_files.h"

namespace headwise {
namespace {

constexpr std::string_view kFolder = "/page/";

// Whatever a model writes, the page runs and loads its own files alone, asks this server alone, and is in no frame.
constexpr const char* kContentPolicy =
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

const char* ContentType(std::string_view name) {
  if (name.ends_with(".html")) return "text/html; charset=utf-8";
  if (name.ends_with(".js")) return "text/javascript; charset=utf-8";
  if (name.ends_with(".css")) return "text/css; charset=utf-8";
  if (name.ends_with(".svg")) return "image/svg+xml";
  return "application/octet-stream";
}

ApiResult<HttpResponse> AnswerFile(std::string_view name) {
  const std::span<const PageFile> files = PageFiles();
  const auto file = std::ranges::find(files, name, &PageFile::name);
  if (file == files.end()) {
    return ApiError{.status = 404,
                    .message = fmt::format("Unknown request URL: GET {}{}", kFolder, name),
                    .param = {},
                    .code = "unknown_url"};
  }
  return HttpResponse{.content_type = ContentType(name),
                      .body = std::string(file->bytes),
                      .fields = {{"Content-Security-Policy", kContentPolicy},
                                 {"X-Content-Type-Options", "nosniff"},
                                 {"Referrer-Policy", "no-referrer"},
                                 // A new server may have other files under the same names.
                                 {"Cache-Control", "no-cache"}}};
}

}  // namespace

bool IsPagePath(std::string_view path) {
  return path == "/" || path.starts_with(kFolder);
}

void AddPageEndpoints(Router& router, const EndpointParts&) {
  router.Add("GET", "/", Immediate([](const HttpRequest&, const std::string&) { return AnswerFile("index.html"); }));
  router.Add("GET", std::string(kFolder) + "*",
             Immediate([](const HttpRequest&, const std::string& name) { return AnswerFile(name); }));
}

}  // namespace headwise
