#pragma once
// HTTP by libcurl, which http.cpp alone knows. Proxies are found as curl finds them (https_proxy, no_proxy, …).

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

namespace nibble::hub {

// Where models are kept and come from, as Hugging Face's variables say (app/options/settings.cpp reads them).
struct Settings {
  std::filesystem::path cache;                                 // HF_HUB_CACHE, or hub/ of HF_HOME
  std::filesystem::path models = "models";                     // looked into before the cache
  std::string endpoint = "https://huggingface.co";             // HF_ENDPOINT, without a / at its end
  std::string token;                                           // HF_TOKEN
  std::filesystem::path token_file;                            // read where there is no token; may be absent
  std::filesystem::path certificates;                          // a PEM file instead of the system's; may be empty
  std::vector<std::filesystem::path> ollama;                   // Ollama's stores, looked into last
  std::function<int64_t()> memory = [] { return INT64_MAX; };  // bytes that a model may take here
  bool offline = false;                                        // HF_HUB_OFFLINE
};

struct HttpRequest {
  std::string url;
  int64_t from = -1, to = -1;  // bytes, both included; -1: all
  bool here = false;           // of a server on this machine: no proxy, whatever certificate, an answer within a second
};

struct HttpAnswer {
  int status = 0;                              // of the last redirect's end; 0: there was no answer
  std::map<std::string, std::string> headers;  // names in small letters
  std::string body;                            // where nobody took it; its start, of an error
  std::string failure;                         // of the connection, in words; empty where the answer is whole
  bool hopeless = false;                       // the same again would fail the same way
  bool unresolved = false;                     // no address was found for the host's name

  [[nodiscard]] std::string header(const std::string& name) const;
  [[nodiscard]] bool ok() const { return failure.empty() && status >= 200 && status < 300; }
};

// Gets the body of a 2xx answer piece by piece. False ends it without a failure; what it throws, get() throws.
using TakeBody = std::function<bool(const HttpAnswer& head, std::span<const std::byte> bytes)>;

// Connections that are kept between requests; of one thread.
class Http {
 public:
  // `stop` is asked while there is something to wait for. Throws Error(kInvalidRequest) for a token that is none.
  Http(const Settings& settings, std::function<bool()> stop);
  ~Http();
  Http(const Http&) = delete;
  Http& operator=(const Http&) = delete;

  // Follows redirects, never from https to http; the token goes to the endpoint's own scheme, host and port alone.
  [[nodiscard]] HttpAnswer get(const HttpRequest& request, const TakeBody& take = {});

 private:
  struct Transfer;
  void send(const HttpRequest& request, const std::string& url, Transfer& transfer);

  std::function<bool()> stop_;
  std::string endpoint_, token_, certificates_;
  struct Handle;
  std::unique_ptr<Handle> handle_;
};

// What to do about an answer that is none: how long to wait before the same again.
struct Retry {
  bool worth = false;
  double seconds = 0;
  std::string why;
};
// `attempt` counts from 0. A 429 and a 503 say how long (Retry-After); what would take longer than five minutes is not
// worth it.
[[nodiscard]] Retry retry_of(const HttpAnswer& answer, int attempt);

// As a part of a URL; `keep`: characters that stay as they are.
[[nodiscard]] std::string url_escaped(const std::string& text, const std::string& keep);

}  // namespace nibble::hub
