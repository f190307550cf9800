// nibble alone: four commands that work now, given what is on this machine.

#include "app/models/here.h"
#include "app/serve/server_record.h"
#include "app/setup/commands.h"
#include "app/setup/terminal.h"
#include "backend/cuda/cuda_backend.h"
#include "hub/model_name.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

namespace nibble::app {

int execute(const GreetOptions& options) {
  constexpr int64_t kSmallBytes = 13'800'000'000;  // gpt-oss-20b's
  const std::vector<hub::Snapshot> models = models_that_run(options.hub);
  const auto best = std::ranges::max_element(models, {}, &hub::Snapshot::bytes);
  const std::string name = best == models.end() ? "" : best->name, server = url_of_a_server(options.records);
  const bool knows_little = name.empty() || best->bytes < kSmallBytes / 2;
  std::string lines;
  int left = 4;
  const auto add = [&](bool works, const std::string& command, const std::string& what) {
    if (works && left-- > 0) lines += fmt::format("  {:<46}  {}\n", "nibble " + command, what);
  };
  add(!name.empty(), "chat " + name, knows_little ? "talk to a small model that knows little" : "talk to it");
  add(knows_little && hub::fits(kSmallBytes, options.hub.memory()), "pull openai/gpt-oss-20b",
      "get a model that knows something (14 GB)");
  add(!server.empty(), "ps", "your server; its chat page is " + server + "/");
  add(server.empty() && !name.empty(), "serve " + name, "OpenAI's API, and a chat page in the browser");
  add(!knows_little, "bench " + name, "how fast it is, and what this machine allows");
  add(true, "list", "the models on this machine");
  add(true, "inspect gpt-oss-20b --load-format dummy", "what a larger model holds and needs");
  add(true, "predict gpt-oss-20b --card 4090", "how fast a card that is not here would be");
  const backend::CudaAvailable card = backend::cuda_available();
  const std::string why = card.expected && !card.yes ? ": the card cannot be used, " + card.reason : "";
  Terminal({}).print(fmt::format(
      "Nibble runs gpt-oss on your own machine, here on the {}{}.\n\n{}\nnibble --help lists every command, nibble COMMAND "
      "--help its flags.\n",
      card.yes ? "card" : "processor", why, lines));
  return kExitOk;
}

}  // namespace nibble::app
