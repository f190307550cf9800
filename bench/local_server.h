#pragma once
// nibble serve's own stack in this process, and a socket to it: what the benchmarks of the server share.

#include "app/loaded_model.h"
#include "app/terminal.h"
#include "base/error.h"
#include "engine/engine.h"
#include "server/api.h"
#include "server/http_server.h"
#include "text/grammar.h"

#include <fmt/format.h>

#include <string>
#include <utility>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

namespace nibble::app {

class LocalServer {
 public:
  // threads: of the backend; 0: one per core.
  LocalServer(const std::string& directory, const engine::EngineLimits& limits, int threads = 0)
      : terminal({.quiet = true}),
        options(named(directory, threads)),
        source(open_model(options, terminal)),
        loaded(source, options, engine::step_limits(limits, source.config.dims), {terminal, {}}),
        grammars(source.tokenizer),
        engine(loaded.backend(), loaded.model(), limits),
        api({.date = [] { return std::string("2026-11-21"); }, .log = [](const server::Json&) {}}),
        http({.port = 0}, [this](const server::HttpRequest& request, server::Wake wake) {
          return api.handle(request, std::move(wake));
        }) {
    const auto id_of = [this](std::string_view name) { return source.tokenizer.special_id(name); };
    api.publish({.tokenizer = &source.tokenizer,
                 .grammars = &grammars,
                 .ids = text::HarmonyIds::from_names(id_of),
                 .names = {"bench"},
                 .eos_ids = {},
                 .max_context = limits.max_context,
                 .vocab = source.config.dims.vocab},
                server::port_of(engine));
  }

  // A socket on which `body` has been sent to `path`; its answer ends with the connection.
  [[nodiscard]] int post(std::string_view path, std::string_view body) const {
    const std::string request =
        fmt::format("POST {} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{}", path,
                    body.size(), body);
    const int fd = ::socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{.sin_family = AF_INET,
                        .sin_port = htons(static_cast<uint16_t>(port)),
                        .sin_addr = {.s_addr = htonl(INADDR_LOOPBACK)},
                        .sin_zero = {}};
    check(fd >= 0 && ::connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0, "connect");
    check(::send(fd, request.data(), request.size(), 0) == static_cast<ssize_t>(request.size()), "send");
    return fd;
  }

  Terminal terminal;
  ModelOptions options;
  ModelSource source;
  LoadedModel loaded;
  text::GrammarCompiler grammars;
  engine::Engine engine;
  server::Api api;
  server::HttpServer http;
  const int port = http.port();  // a draining server has none

 private:
  static ModelOptions named(const std::string& directory, int threads) {
    ModelOptions options;
    options.run.backend = BackendKind::kCpu;
    options.model = directory;
    options.run.threads = threads;
    return options;
  }
};

}  // namespace nibble::app
