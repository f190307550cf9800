#include "app/options/settings.h"

#include "app/options/option.h"
#include "backend/shards.h"
#include "base/error.h"
#include "base/machine.h"

#include <fmt/format.h>

#include <charconv>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

namespace nibble::app {
namespace {

struct LauncherWords {
  const char *rank, *size, *local_rank, *local_size;
};
constexpr LauncherWords kLaunchers[] = {
    {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"},
    {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"}};

std::string value_of(const Variables& environment, const char* name) {
  const auto found = environment.find(name);
  return found == environment.end() ? std::string() : found->second;
}

int number_of(const Variables& environment, const char* name) {
  constexpr int kMost = 1 << 20;
  const std::string found = value_of(environment, name);
  int value = 0;
  const auto [rest, error] = std::from_chars(found.data(), found.data() + found.size(), value);
  if (error != std::errc() || rest != found.data() + found.size() || value < 0 || value > kMost)
    throw Error(Code::kInvalidRequest, "environment {}: want a whole number from 0 to {}, found {}", name, kMost,
                found.empty() ? "none" : found);
  return value;
}

std::string origin_of(const char* name) { return fmt::format("environment {}", name); }

// Ranks of one machine share its processors.
void add_threads(const LauncherWords& words, const Variables& environment, std::vector<Setting>& settings) {
  if (value_of(environment, words.local_size).empty()) return;
  const int size = number_of(environment, words.local_size), rank = number_of(environment, words.local_rank);
  if (rank >= size)
    throw Error(Code::kInvalidRequest, "environment {}: want less than {}, {}, found {}", words.local_rank,
                words.local_size, size, rank);
  if (size == 1) return;
  const int threads = backend::threads_of(rank, {.count = size}, available_processors());
  settings.push_back({"--threads", fmt::format("{}", threads), origin_of(words.local_size)});
}

}  // namespace

std::vector<Setting> group_settings(const Arguments& arguments, const Variables& environment) {
  std::vector<Setting> settings;
  for (const LauncherWords& words : kLaunchers) {
    const std::string size = value_of(environment, words.size);
    if (size.empty() || number_of(environment, words.size) <= 1) continue;
    if (value_of(environment, words.rank).empty())
      throw Error(Code::kInvalidRequest, "environment {} {}: want {} beside it, found none", words.size, size,
                  words.rank);
    settings.push_back({"--nnodes", size, origin_of(words.size)});
    settings.push_back({"--node-rank", value_of(environment, words.rank), origin_of(words.rank)});
    add_threads(words, environment, settings);
    break;
  }
  const bool several =
      !settings.empty() || arguments.given("--nnodes") || !value_of(environment, "NIBBLE_NNODES").empty();
  if (!several) return settings;
  if (const std::string address = value_of(environment, "MASTER_ADDR"); !address.empty())
    settings.push_back({"--master-addr", address, origin_of("MASTER_ADDR")});
  if (!value_of(environment, "MASTER_PORT").empty()) {
    // Then torchrun's own store already uses the port.
    const bool taken = value_of(environment, "TORCHELASTIC_USE_AGENT_STORE") == "True";
    const int port = number_of(environment, "MASTER_PORT") + (taken ? 1 : 0);
    settings.push_back({"--master-port", fmt::format("{}", port), origin_of("MASTER_PORT")});
  }
  return settings;
}

std::string card_of(const Variables& environment) {
  for (const LauncherWords& words : kLaunchers) {
    if (value_of(environment, words.local_rank).empty()) continue;
    const int rank = number_of(environment, words.local_rank);
    const auto listed = environment.find("CUDA_VISIBLE_DEVICES");
    if (listed == environment.end()) return fmt::format("{}", rank);
    const std::vector<std::string> cards = split(listed->second, ',');
    if (cards.size() <= 1) return "";  // the launcher's choice
    if (std::cmp_less(rank, cards.size())) return cards[static_cast<size_t>(rank)];
    throw Error(Code::kInvalidRequest, "environment CUDA_VISIBLE_DEVICES {}: want a card for {} {}, found {}",
                listed->second, words.local_rank, rank, cards.size());
  }
  return "";
}

void take_group(const Arguments& arguments, const Variables& environment, ModelOptions& o) {
  const GroupOptions& group = o.group;
  if (group.rank >= group.count)
    throw Error(Code::kInvalidRequest, "--node-rank: want less than --nnodes, {}, found {}", group.count, group.rank);
  if (group.count == 1) return;
  if (group.address.empty())
    throw Error(Code::kInvalidRequest, "--nnodes {}: want --master-addr or MASTER_ADDR, where rank 0 is, found none",
                group.count);
  if (arguments.given("--tensor-parallel-size") && o.run.ranks.count != group.count)
    throw Error(Code::kInvalidRequest, "--tensor-parallel-size {}: want {}, one rank in each of --nnodes, found {}",
                o.run.ranks.count, group.count, o.run.ranks.count);
  o.run.ranks.count = group.count;
  o.group.card = card_of(environment);
  o.cards = {0, 1};
}

}  // namespace nibble::app
