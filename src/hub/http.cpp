#include "hub/http.h"

#include "base/ascii.h"
#include "base/error.h"
#include "base/shared_library.h"

#include <curl/curl.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <exception>
#include <fstream>
#include <optional>
#include <string_view>
#include <utility>

namespace nibble::hub {
namespace {

constexpr size_t kMostErrorBytes = size_t{64} << 10, kMostBodyBytes = size_t{64} << 20;
constexpr int kMostRedirects = 10;
constexpr long kConnectSeconds = 20, kStallSeconds = 30;  // without a byte
constexpr long kHereMilliseconds = 1000;
constexpr double kFirstWait = 0.5, kLongestWait = 30, kMostPatience = 300;

// libcurl's functions, of the system's library: a program that is linked with it asks for Debian's versions of these
// names, and does not start at all where it is missing.
struct Curl {
  SharedLibrary library{{.file = "libcurl.so.4",
                         .name = "libcurl",
                         .purpose = "to fetch with",
                         .packages = "apt install libcurl4, or dnf install libcurl"}};
  decltype(&curl_easy_cleanup) easy_cleanup = library.find("curl_easy_cleanup");
  decltype(&curl_easy_getinfo) easy_getinfo = library.find("curl_easy_getinfo");
  decltype(&curl_easy_init) easy_init = library.find("curl_easy_init");
  decltype(&curl_easy_perform) easy_perform = library.find("curl_easy_perform");
  decltype(&curl_easy_reset) easy_reset = library.find("curl_easy_reset");
  decltype(&curl_easy_setopt) easy_setopt = library.find("curl_easy_setopt");
  decltype(&curl_easy_strerror) easy_strerror = library.find("curl_easy_strerror");
  decltype(&curl_free) free = library.find("curl_free");
  decltype(&curl_getdate) getdate = library.find("curl_getdate");
  decltype(&curl_global_init) global_init = library.find("curl_global_init");
  decltype(&curl_slist_append) slist_append = library.find("curl_slist_append");
  decltype(&curl_slist_free_all) slist_free_all = library.find("curl_slist_free_all");
  decltype(&curl_url) url = library.find("curl_url");
  decltype(&curl_url_cleanup) url_cleanup = library.find("curl_url_cleanup");
  decltype(&curl_url_get) url_get = library.find("curl_url_get");
  decltype(&curl_url_set) url_set = library.find("curl_url_set");
};

const Curl& curl() {
  static const Curl loaded = [] {
    Curl library;
    check(library.global_init(CURL_GLOBAL_DEFAULT) == CURLE_OK, "libcurl starts");
    return library;
  }();
  return loaded;
}

using Url = std::unique_ptr<CURLU, decltype(&curl_url_cleanup)>;

Url parse_url(const std::string& text) {
  Url url(curl().url(), curl().url_cleanup);
  if (!url || curl().url_set(url.get(), CURLUPART_URL, text.c_str(), 0) != CURLUE_OK)
    return {nullptr, curl().url_cleanup};
  return url;
}

std::string part_of(const Url& url, CURLUPart part) {
  char* text = nullptr;
  if (!url || curl().url_get(url.get(), part, &text, CURLU_DEFAULT_PORT) != CURLUE_OK) return {};
  std::string copy = text;
  curl().free(text);
  return copy;
}

std::string origin_of(const std::string& text) {
  const Url url = parse_url(text);
  return fmt::format("{}://{}:{}", part_of(url, CURLUPART_SCHEME), part_of(url, CURLUPART_HOST),
                     part_of(url, CURLUPART_PORT));
}

// Where a redirect leads; empty where it leads nowhere that we go.
std::string redirected(const std::string& from, const std::string& location) {
  const Url url = parse_url(from);
  if (!url || curl().url_set(url.get(), CURLUPART_URL, location.c_str(), 0) != CURLUE_OK) return {};
  const std::string scheme = part_of(url, CURLUPART_SCHEME);
  const bool safe = scheme == "https" || (scheme == "http" && !from.starts_with("https:"));
  return safe ? part_of(url, CURLUPART_URL) : std::string();
}

std::string trimmed(std::string_view text) {
  const auto blank = [](char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; };
  while (!text.empty() && blank(text.front())) text.remove_prefix(1);
  while (!text.empty() && blank(text.back())) text.remove_suffix(1);
  return std::string(text);
}

std::string token_of(const Settings& settings) {
  std::string token = settings.token;
  if (token.empty()) {
    std::ifstream file(settings.token_file);
    std::getline(file, token);
  }
  token = trimmed(token);
  if (!std::ranges::all_of(token, [](unsigned char c) { return c >= 0x20 && c < 0x7F; }))
    throw Error(Code::kInvalidRequest,
                "want a token or key of ASCII for {} (HF_TOKEN, NIBBLE_API_KEY), found other characters in it",
                settings.endpoint);
  return token;
}

bool is_hopeless(CURLcode code) {
  return code == CURLE_PEER_FAILED_VERIFICATION || code == CURLE_SSL_CACERT_BADFILE || code == CURLE_SSL_CERTPROBLEM ||
         code == CURLE_UNSUPPORTED_PROTOCOL || code == CURLE_URL_MALFORMAT || code == CURLE_COULDNT_RESOLVE_PROXY;
}

std::optional<double> seconds_in(std::string_view text) {
  const auto seconds = number_in<double>(text);
  return seconds && *seconds >= 0 ? seconds : std::nullopt;
}

// Retry-After in seconds or as a date; or what the Hub says in RateLimit: "api";r=0;t=55.
std::optional<double> asked_wait(const HttpAnswer& answer) {
  const std::string after = answer.header("retry-after");
  if (const auto seconds = seconds_in(after)) return seconds;
  if (const time_t date = after.empty() ? -1 : curl().getdate(after.c_str(), nullptr); date >= 0)
    return std::max(0.0, static_cast<double>(date - time(nullptr)));
  const std::string limit = answer.header("ratelimit");
  const size_t at = limit.find(";t=");
  return at == std::string::npos ? std::nullopt : seconds_in(trimmed(limit.substr(at + 3)));
}

}  // namespace

struct Http::Handle {
  CURL* easy = curl().easy_init();
  std::array<char, CURL_ERROR_SIZE> error{};
  Handle() { check(easy != nullptr, "libcurl gives a handle"); }
  ~Handle() { curl().easy_cleanup(easy); }
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;

  template <class Value>
  void set(CURLoption option, Value value) {
    check(curl().easy_setopt(easy, option, value) == CURLE_OK, "an option that libcurl knows");
  }
};

// One answer as libcurl hands it over.
struct Http::Transfer {
  Http& http;
  const TakeBody& take;
  HttpAnswer answer;
  bool ended = false;  // by TakeBody
  std::exception_ptr thrown = {};

  static size_t on_header(char* data, size_t one, size_t bytes, void* self) {
    auto& answer = static_cast<Transfer*>(self)->answer;
    const std::string_view line(data, one * bytes);
    if (line.starts_with("HTTP/")) {
      answer.headers.clear();
      return line.size();
    }
    const size_t colon = line.find(':');
    if (colon == std::string_view::npos) return line.size();
    std::string name(line.substr(0, colon));
    std::ranges::transform(name, name.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    answer.headers[name] = trimmed(line.substr(colon + 1));
    return line.size();
  }

  static size_t on_body(char* data, size_t one, size_t bytes, void* self) {
    auto& transfer = *static_cast<Transfer*>(self);
    HttpAnswer& answer = transfer.answer;
    long status = 0;
    curl().easy_getinfo(transfer.http.handle_->easy, CURLINFO_RESPONSE_CODE, &status);
    answer.status = static_cast<int>(status);
    const size_t size = one * bytes;
    if (status < 200 || status >= 300 || !transfer.take) {
      const size_t most = status >= 200 && status < 300 ? kMostBodyBytes : kMostErrorBytes;
      if (answer.body.size() + size > most) return status >= 200 && status < 300 ? 0 : size;
      answer.body.append(data, size);
      return size;
    }
    try {
      transfer.ended = !transfer.take(answer, std::as_bytes(std::span(data, size)));
    } catch (...) {  // not through C
      transfer.thrown = std::current_exception();
      transfer.ended = true;
    }
    return transfer.ended ? 0 : size;
  }

  static int on_time(void* self, curl_off_t, curl_off_t, curl_off_t, curl_off_t) {
    return static_cast<Transfer*>(self)->http.stop_() ? 1 : 0;
  }
};

std::string HttpAnswer::header(const std::string& name) const {
  const auto it = headers.find(name);
  return it == headers.end() ? "" : it->second;
}

Http::Http(const Settings& settings, std::function<bool()> stop)
    : stop_(std::move(stop)),
      endpoint_(origin_of(settings.endpoint)),
      token_(token_of(settings)),
      certificates_(settings.certificates.string()),
      handle_(std::make_unique<Handle>()) {}

Http::~Http() = default;

void Http::send(const HttpRequest& request, const std::string& url, Transfer& transfer) {
  Handle& h = *handle_;
  curl().easy_reset(h.easy);  // connections stay
  h.error[0] = '\0';
  h.set(CURLOPT_URL, url.c_str());
  h.set(CURLOPT_ERRORBUFFER, h.error.data());
  h.set(CURLOPT_NOSIGNAL, 1L);
  h.set(CURLOPT_FOLLOWLOCATION, 0L);  // get() does, knowing whom the token is for
  h.set(CURLOPT_SUPPRESS_CONNECT_HEADERS, 1L);
  h.set(CURLOPT_HTTP_VERSION, long{CURL_HTTP_VERSION_1_1});  // a connection per thread
  h.set(CURLOPT_CONNECTTIMEOUT, kConnectSeconds);
  h.set(CURLOPT_LOW_SPEED_LIMIT, 1L);
  h.set(CURLOPT_LOW_SPEED_TIME, kStallSeconds);
  h.set(CURLOPT_USERAGENT, "nibble/" NIBBLE_VERSION);
  if (request.here) {
    h.set(CURLOPT_PROXY, "");
    h.set(CURLOPT_SSL_VERIFYPEER, 0L);
    h.set(CURLOPT_SSL_VERIFYHOST, 0L);
    h.set(CURLOPT_TIMEOUT_MS, kHereMilliseconds);
  }
  if (!certificates_.empty()) h.set(CURLOPT_CAINFO, certificates_.c_str());
  h.set(CURLOPT_HEADERFUNCTION, &Transfer::on_header);
  h.set(CURLOPT_HEADERDATA, &transfer);
  h.set(CURLOPT_WRITEFUNCTION, &Transfer::on_body);
  h.set(CURLOPT_WRITEDATA, &transfer);
  h.set(CURLOPT_NOPROGRESS, 0L);
  h.set(CURLOPT_XFERINFOFUNCTION, &Transfer::on_time);
  h.set(CURLOPT_XFERINFODATA, &transfer);
  std::vector<std::string> lines;
  if (!token_.empty() && origin_of(url) == endpoint_) lines.push_back("Authorization: Bearer " + token_);
  if (request.from >= 0) lines.push_back(fmt::format("Range: bytes={}-{}", request.from, request.to));
  curl_slist* headers = nullptr;
  for (const std::string& line : lines) headers = curl().slist_append(headers, line.c_str());
  h.set(CURLOPT_HTTPHEADER, headers);
  const CURLcode code = curl().easy_perform(h.easy);
  curl().slist_free_all(headers);
  long status = 0;
  curl().easy_getinfo(h.easy, CURLINFO_RESPONSE_CODE, &status);
  transfer.answer.status = static_cast<int>(status);
  if (transfer.thrown) std::rethrow_exception(transfer.thrown);
  if (code == CURLE_OK || transfer.ended) return;
  transfer.answer.failure = h.error[0] != '\0' ? h.error.data() : curl().easy_strerror(code);
  transfer.answer.hopeless = is_hopeless(code);
  transfer.answer.unresolved = code == CURLE_COULDNT_RESOLVE_HOST;
}

HttpAnswer Http::get(const HttpRequest& request, const TakeBody& take) {
  std::string url = request.url;
  for (int hop = 0; hop <= kMostRedirects; ++hop) {
    Transfer transfer{.http = *this, .take = take, .answer = {}};
    send(request, url, transfer);
    HttpAnswer& answer = transfer.answer;
    const std::string location = answer.header("location");
    const bool moves = answer.status >= 301 && answer.status <= 308 && answer.status != 304 && !location.empty();
    if (!answer.failure.empty() || !moves) return std::move(answer);
    url = redirected(url, location);
    if (url.empty()) {
      answer.failure = fmt::format("a redirect to {}, which is not followed", location);
      answer.hopeless = true;
      return std::move(answer);
    }
  }
  HttpAnswer lost;
  lost.failure = fmt::format("more than {} redirects", kMostRedirects);
  lost.hopeless = true;
  return lost;
}

Retry retry_of(const HttpAnswer& answer, int attempt) {
  double wait = kFirstWait;
  for (int i = 0; i < attempt; ++i) wait = std::min(wait * 2, kLongestWait);
  if (answer.status == 0 || !answer.failure.empty()) return {!answer.hopeless, wait, answer.failure};
  if (answer.status == 429 || answer.status == 503) {
    const double asked = asked_wait(answer).value_or(wait);
    return {asked <= kMostPatience, std::max(asked, 0.1),
            answer.status == 429 ? "too many requests (429)" : "not available (503)"};
  }
  const bool passes = answer.status == 408 || answer.status >= 500;
  return {passes, wait, fmt::format("status {}", answer.status)};
}

std::string url_escaped(const std::string& text, const std::string& keep) {
  std::string escaped;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    const bool plain =
        byte < 0x80 && (std::isalnum(byte) != 0 || std::string_view("-._~").find(c) != std::string::npos);
    escaped += plain || keep.find(c) != std::string::npos ? std::string(1, c) : fmt::format("%{:02X}", byte);
  }
  return escaped;
}

}  // namespace nibble::hub
