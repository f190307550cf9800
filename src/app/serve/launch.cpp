// nibble launch: another program, which a profile of its own tells to use a server on this machine. The user's own
// files stay as they are.

#include "app/setup/commands.h"
#include "app/setup/terminal.h"
#include "base/error.h"
#include "base/read_json.h"
#include "hub/http.h"
#include "hub/partial_file.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

namespace nibble::app {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kRecipes =
#include "app/serve/launch_recipes.txt"
    ;

struct Recipe {
  std::string name, install, variables, file, text;  // without a file the last two are empty
};

std::vector<Recipe> recipes() {
  std::vector<Recipe> all;
  const std::vector<std::string> parts = split(kRecipes, '^');
  for (size_t i = 1; i < parts.size(); i += 5)
    all.push_back({parts[i], parts[i + 1], parts[i + 2].substr(1), parts[i + 3], parts[i + 4].substr(1)});
  return all;
}

using Facts = std::vector<std::pair<std::string_view, std::string>>;  // {name} and what stands for it

// In a file, values stand between quotes, and JSON's escapes are TOML's and YAML's, too.
enum class In { kVariable, kFile };
std::string filled(std::string text, const Facts& facts, In where) {
  for (const auto& [name, value] : facts) {
    std::string told = value;
    if (where == In::kFile) {
      told = nlohmann::json(value).dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
      told = told.substr(1, told.size() - 2);
    }
    for (size_t at = 0; (at = text.find(name, at)) != std::string::npos; at += told.size())
      text.replace(at, name.size(), told);
  }
  return text;
}

// nibble serve in a process of its own, apart from the terminal's Ctrl-C; it ends with this one.
class Server {
 public:
  Server(std::vector<std::string> command, const fs::path& log) {
    std::vector<char*> words;
    for (std::string& word : command) words.push_back(word.data());
    words.push_back(nullptr);
    pid_ = fork();
    if (pid_ < 0) throw Error(Code::kIo, "cannot start a server: {}", std::strerror(errno));
    if (pid_ > 0) return;
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    setpgid(0, 0);
    dup2(open("/dev/null", O_RDONLY | O_CLOEXEC), STDIN_FILENO);
    for (const int out : {STDOUT_FILENO, STDERR_FILENO})
      dup2(open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600), out);
    execv("/proc/self/exe", words.data());
    _exit(kExitIo);
  }
  ~Server() {
    kill(pid_, SIGTERM);
    while (waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
    }
  }
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  [[nodiscard]] bool has_ended() const {
    siginfo_t info{};
    return waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid != 0;
  }

 private:
  pid_t pid_;
};

// As a shell reads them.
std::string line_of(const std::vector<std::string>& words) {
  std::string line;
  for (const std::string& word : words) {
    std::string quoted;
    for (const char c : word) quoted += c == '\'' ? "'\\''" : std::string(1, c);
    const bool plain = !word.empty() && word.find_first_of(" \t\n'\"\\$&|;<>()*?`#~![]{}") == std::string::npos;
    line.append(line.empty() ? "" : " ").append(plain ? word : "'" + quoted + "'");
  }
  return line;
}

// Waits until the server has loaded its model. `started`: the one that was started for this; null: none.
void wait_for(hub::Http& http, const std::string& url, const Server* started, const fs::path& log, Terminal& terminal) {
  while (true) {
    const int status = http.get({.url = url + "/health", .here = true}).status;
    if (status == 200) return terminal.end_progress();
    if (started != nullptr && started->has_ended())
      throw Error(Code::kIo, "the server has ended; why stands at the end of {}", log.string());
    if (status != 503 && (started == nullptr || status != 0))
      throw Error(Code::kIo, "{}/health: want 200, or 503 while a model is loaded, found {}", url, status);
    terminal.status("waiting for the model of " + url);
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
}

}  // namespace

int execute(const LaunchOptions& o) {
  Terminal terminal({});
  std::string names;
  std::optional<Recipe> recipe;
  for (Recipe& one : recipes()) {
    names += (names.empty() ? "" : ", ") + one.name;
    if (one.name == o.program) recipe = std::move(one);
  }
  if (!recipe) throw Error(Code::kInvalidRequest, "nibble launch: want one of {}, found {}", names, o.program);
  if (!o.print && std::system(fmt::format("command -v {} >/dev/null", o.program).c_str()) != 0)
    throw Error(Code::kIo, "{} is not installed; {} gets it", o.program, recipe->install);
  if (o.profiles.is_relative()) throw Error(Code::kIo, "nibble launch: want HOME for a profile, found none");
  const fs::path profile = o.profiles / o.program, log = profile / "server.log";
  const std::string url = fmt::format("http://127.0.0.1:{}", o.port);
  std::vector<std::string> serve = {"nibble", "serve", "--port", fmt::format("{}", o.port)}, command = {"env"};
  if (!o.model.empty()) serve.insert(serve.end(), {"--model", o.model});
  if (!o.server_key.empty() && (recipe->variables + recipe->text).find("{key}") == std::string::npos)
    throw Error(Code::kUnsupported, "nibble launch: {} can only be given a server without a key", o.program);

  hub::Settings settings;  // no Hub's: its token goes to no server
  settings.endpoint = url;
  settings.token = o.server_key;
  hub::Http http(settings, [] { return false; });
  std::optional<Server> server;
  const bool runs = http.get({.url = url + "/health", .here = true}).status != 0;
  Facts facts = {{"{url}", url},
                 {"{profile}", profile.string()},
                 {"{context}", "CONTEXT"},
                 {"{model}", "MODEL"},
                 {"{key}", o.server_key.empty() ? "none"
                           : o.print            ? "YOUR_KEY"
                                                : o.server_key}};
  if (!o.print) {
    fs::create_directories(profile);
    fs::permissions(profile, fs::perms::owner_all);  // its files may hold the key
  }
  if (!o.print && !runs) {
    fs::remove(log);
    if (!o.server_key.empty()) setenv("NIBBLE_API_KEY", o.server_key.c_str(), 1);  // other users read a command line
    server.emplace(serve, log);
  }
  if (runs || server) {
    wait_for(http, url, server ? &*server : nullptr, log, terminal);
    const hub::HttpAnswer answer = http.get({.url = url + "/v1/models", .here = true});
    if (answer.status == 401)
      throw Error(Code::kInvalidRequest, "{} asks for its key: NIBBLE_API_KEY, or --api-key", url);
    const auto models = read_json(answer.body);
    try {
      facts[2].second = models.at("data").at(0).at("max_model_len").dump();
      facts[3].second = models.at("data").at(0).at("id");
    } catch (const nlohmann::json::exception&) {
      throw Error(Code::kIo, "{}/v1/models: want a model and its context, found none", url);
    }
  }
  const std::string text = filled(recipe->text, facts, In::kFile);
  for (const std::string& variable : split(filled(recipe->variables, facts, In::kVariable), '\n'))
    if (!variable.empty()) command.push_back(variable);
  command.push_back(o.program);
  command.insert(command.end(), o.arguments.begin(), o.arguments.end());
  if (o.print) {
    if (!runs) terminal.print("# first a server, which says what MODEL and CONTEXT are\n" + line_of(serve) + "\n");
    if (!text.empty()) terminal.print(fmt::format("# {}\n{}", (profile / recipe->file).string(), text));
    terminal.print(fmt::format("# the program\n{}\n", line_of(command)));
    return kExitOk;
  }
  if (!text.empty()) hub::write_whole(profile / recipe->file, text);
  const int status = std::system(("exec " + line_of(command)).c_str());  // to which Ctrl-C belongs
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

}  // namespace nibble::app
