#include "backend/cuda/emulation/device.h"

#include "base/random.h"

#include <ucontext.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <memory>
#include <vector>

namespace nibble::backend::cuda {

alignas(128) uint8_t smem[256 * 1024];

namespace emulation {
namespace {

constexpr size_t kStackBytes = 128 * 1024;

// A lane. Its stack comes from those before it: making one and touching its pages costs more than most lanes do.
struct Fiber {
  ucontext_t context{};
  std::unique_ptr<char[]> stack;
  const std::function<bool()>* waits_for = nullptr;
  bool done = false;
  uint64_t cluster_round = 0;  // at which it arrived
};

struct Meeting {
  int arrived = 0;
  uint64_t round = 0;
  WarpOperands coming, met;
  uint32_t sleep = 0;  // turns
};

struct Copy {
  uint32_t to;
  const void* from;
  uint32_t bytes, delay;
  std::function<void()> landed;
};

// Copies of one lane that are under way, by group; the last is open.
struct CopyGroups {
  std::deque<int> under_way = {0};
  int first = 0;  // number of under_way[0]
};

struct Cta {
  int number = 0;
  std::vector<uint8_t> memory = std::vector<uint8_t>(sizeof smem, 0xff);  // shared, while it does not run
  std::vector<CopyGroups> groups;                                         // of each lane
  std::vector<Fiber> fibers;
  std::vector<Meeting> warps;
  Meeting block;
  std::vector<Copy> copies;
  ucontext_t scheduler{};
  const std::function<void()>* kernel = nullptr;
  int current = 0;
  int waiting_outside = 0;  // lanes, for other CTAs of the cluster
  uint64_t progress = 0, draws = 0, seed = 0;
};

Cta* cta = nullptr;  // that runs; one at a time
std::function<void()> predecessor;

struct Clusters {
  struct One {
    int arrived = 0;
    uint64_t round = 0;
  };
  int size = 1;
  std::vector<One> all;
  std::vector<Cta*> begun;  // by number; null: it has ended
  [[nodiscard]] One& own() { return all[static_cast<size_t>(cta->number / size)]; }
};
Clusters clusters;

Fiber& current() { return cta->fibers[static_cast<size_t>(cta->current)]; }

// The context of the next lane that has its turn and need not wait, from lane to lane without the scheduler: a switch
// costs system calls. The scheduler's, when none is left.
ucontext_t& next_context() {
  while (++cta->current < std::ssize(cta->fibers)) {
    Fiber& fiber = current();
    if (fiber.done || cta->warps[static_cast<size_t>(cta->current) / kLanes].sleep > 0) continue;
    threadIdx.x = static_cast<unsigned>(cta->current);
    if (fiber.waits_for != nullptr && !(*fiber.waits_for)()) continue;
    fiber.waits_for = nullptr;
    return fiber.context;
  }
  return cta->scheduler;
}

void yield() {
  ucontext_t& own = current().context;
  swapcontext(&own, &next_context());
}

void enter() {
  (*cta->kernel)();
  current().done = true;
  ++cta->progress;
  yield();
}

void land_copies() {
  std::vector<Copy> due;
  std::vector<Copy> later;
  for (Copy& copy : cta->copies) (copy.delay-- == 0 ? due : later).push_back(copy);
  cta->copies = std::move(later);
  for (const Copy& copy : due) {
    std::memcpy(smem + copy.to, copy.from, copy.bytes);
    copy.landed();
    ++cta->progress;
  }
}

// Now and then a warp sleeps for long enough that others could run ahead of it.
void send_to_sleep() {
  for (Meeting& warp : cta->warps) {
    const uint32_t number = philox(cta->seed, cta->draws++)[1];
    warp.sleep = warp.sleep > 0 ? warp.sleep - 1 : number % 64 == 0 ? number / 64 % 128 : 0;
  }
}

// One turn for every lane that still runs and is awake. False when none runs.
bool step() {
  send_to_sleep();
  cta->current = -1;
  ucontext_t& first = next_context();
  if (&first != &cta->scheduler) swapcontext(&cta->scheduler, &first);
  land_copies();
  return !std::ranges::all_of(cta->fibers, &Fiber::done);
}

std::vector<std::unique_ptr<char[]>> spare_stacks;

void start_fibers(int threads) {
  cta->fibers.resize(static_cast<size_t>(threads));
  cta->warps.resize(static_cast<size_t>(threads / kLanes));
  cta->groups.resize(static_cast<size_t>(threads));
  for (Fiber& fiber : cta->fibers) {
    if (spare_stacks.empty()) spare_stacks.push_back(std::make_unique_for_overwrite<char[]>(kStackBytes));
    fiber.stack = std::move(spare_stacks.back());
    spare_stacks.pop_back();
    getcontext(&fiber.context);
    fiber.context.uc_stack.ss_sp = fiber.stack.get();
    fiber.context.uc_stack.ss_size = kStackBytes;
    fiber.context.uc_link = &cta->scheduler;
    makecontext(&fiber.context, enter, 0);
  }
}

void end_fibers(Cta& of) {
  for (Fiber& fiber : of.fibers) spare_stacks.push_back(std::move(fiber.stack));
}

}  // namespace

int lane_idx() { return static_cast<int>(threadIdx.x) % kLanes; }

void made_progress() { ++cta->progress; }

void wait_until(const std::function<bool()>& holds) {
  if (holds()) return;
  current().waits_for = &holds;
  yield();
}

const WarpOperands& exchange(Operands own) {
  Meeting& warp = cta->warps[threadIdx.x / kLanes];
  warp.coming.lane[lane_idx()] = own;
  if (++warp.arrived == kLanes) {
    warp.met = warp.coming;
    warp.arrived = 0;
    ++warp.round;
    ++cta->progress;
  } else {
    const uint64_t round = warp.round;
    wait_until([&] { return warp.round != round; });
  }
  return warp.met;
}

void sync_block() {
  Meeting& block = cta->block;
  const uint64_t round = block.round;
  if (++block.arrived == static_cast<int>(cta->fibers.size())) {
    block.arrived = 0;
    ++block.round;
    ++cta->progress;
  }
  wait_until([&] { return block.round != round; });
}

void copy_later(uint32_t to_shared, const void* from, uint32_t bytes, std::function<void()> landed) {
  std::memset(smem + to_shared, 0xff, bytes);
  const uint32_t delay = philox(cta->seed, cta->draws++)[0] % 40;
  cta->copies.push_back({to_shared, from, bytes, delay, std::move(landed)});
  ++cta->progress;
}

void group_copy(uint32_t to_shared, const void* from, uint32_t bytes) {
  CopyGroups& own = cta->groups[threadIdx.x];
  ++own.under_way.back();
  const int group = own.first + static_cast<int>(own.under_way.size()) - 1;
  // The source as it is now: what the kernel before has still to write comes too late.
  const auto* first = static_cast<const uint8_t*>(from);
  const auto source = std::make_shared<const std::vector<uint8_t>>(first, first + bytes);
  copy_later(to_shared, source->data(), bytes,
             [&own, group, source] { --own.under_way[static_cast<size_t>(group - own.first)]; });
}

void commit_copies() { cta->groups[threadIdx.x].under_way.push_back(0); }

void wait_copies(int newest) {
  CopyGroups& own = cta->groups[threadIdx.x];
  while (static_cast<int>(own.under_way.size()) - 1 > newest) {
    wait_until([&] { return own.under_way.front() == 0; });
    own.under_way.pop_front();
    ++own.first;
  }
}

void wait_own_copies() {
  const CopyGroups& own = cta->groups[threadIdx.x];
  wait_until([&] { return std::all_of(own.under_way.begin(), own.under_way.end(), [](int n) { return n == 0; }); });
}

void dependency_wait() {
  constexpr int kLate = 200;  // turns: what others do before they wait is done before the kernel before ends
  int turns = 0;
  wait_until([&] { return predecessor == nullptr || ++turns > kLate; });
  if (predecessor) predecessor();
  predecessor = nullptr;
}

void cluster_arrive() {
  Clusters::One& own = clusters.own();
  current().cluster_round = own.round;
  if (++own.arrived == clusters.size * static_cast<int>(cta->fibers.size())) {
    own.arrived = 0;
    ++own.round;
  }
  ++cta->progress;
}

void cluster_wait() {
  const uint64_t round = current().cluster_round;
  ++cta->waiting_outside;
  wait_until([&] { return clusters.own().round != round; });
  --cta->waiting_outside;
  ++cta->progress;
}

uint8_t* cluster_memory(int rank) {
  static std::vector<uint8_t> poison;
  poison.assign(sizeof smem, 0xff);
  const auto number = static_cast<size_t>(cta->number / clusters.size * clusters.size + rank);
  Cta* const other = number < clusters.begun.size() ? clusters.begun[number] : nullptr;
  return other == cta ? smem : other != nullptr ? other->memory.data() : poison.data();
}

namespace {

std::unique_ptr<Cta> make_cta(const Launch& launch, const std::function<void()>& kernel, int block) {
  auto made = std::make_unique<Cta>();
  made->number = block;
  made->kernel = &kernel;
  made->seed = launch.seed + static_cast<uint64_t>(block);
  cta = made.get();
  clusters.begun.push_back(cta);
  start_fibers(launch.threads);
  return made;
}

// Whether only other CTAs of the cluster can let it get on.
bool waits_outside(const Cta& which) {
  if (which.waiting_outside == 0 || !which.copies.empty()) return false;
  const uint64_t round = clusters.own().round;
  const auto waits = [&](const Fiber& fiber) { return fiber.done || fiber.cluster_round == round; };
  return which.waiting_outside == std::ranges::count(which.fibers, false, &Fiber::done) &&
         std::ranges::all_of(which.fibers, waits);
}

// Until all its lanes are done, or none gets on. False then.
bool run_cta(Cta& which) {
  // Turns without progress; sleep and copies take less. One that waits for others of its cluster does so often.
  const int patience = clusters.size > 1 ? 250 : 4000;
  cta = &which;
  blockIdx.x = static_cast<unsigned>(which.number) % gridDim.x;
  blockIdx.y = static_cast<unsigned>(which.number) / gridDim.x;
  std::memcpy(smem, which.memory.data(), sizeof smem);
  uint64_t seen = which.progress;
  for (int idle = 0; step(); seen = which.progress) {
    idle = which.progress == seen ? idle + 1 : 0;
    if (idle <= patience && !waits_outside(which)) continue;
    std::memcpy(which.memory.data(), smem, sizeof smem);
    return false;
  }
  return true;
}

}  // namespace

std::string run(const Launch& launch, const std::function<void()>& kernel) {
  predecessor = launch.predecessor;
  gridDim.x = static_cast<unsigned>(launch.grid);
  blockDim.x = static_cast<unsigned>(launch.threads);
  gridDim.y = static_cast<unsigned>(launch.grid_y);
  clusters = {.size = launch.cluster, .all = {}, .begun = {}};
  clusters.all.resize(static_cast<size_t>((launch.grid + launch.cluster - 1) / launch.cluster * launch.grid_y));
  std::deque<std::unique_ptr<Cta>> waiting;
  size_t stuck = 0;  // of these, that have run in vain since one got on
  const int ctas = launch.grid * launch.grid_y;
  for (int block = 0; block < ctas || !waiting.empty();) {
    std::unique_ptr<Cta> next;
    if (block < ctas) {
      next = make_cta(launch, kernel, block++);
    } else {
      next = std::move(waiting.front());
      waiting.pop_front();
    }
    const uint64_t before = next->progress;
    const bool done = run_cta(*next);
    if (done) clusters.begun[static_cast<size_t>(next->number)] = nullptr;
    stuck = done || next->progress != before ? 0 : stuck + 1;
    if (done && !next->copies.empty()) return "a copy outlives CTA " + std::to_string(next->number);
    if (done && launch.after_cta) launch.after_cta();
    if (done) end_fibers(*next);
    if (done) continue;
    waiting.push_back(std::move(next));
    if (block == ctas && stuck == waiting.size()) return "deadlock in CTA " + std::to_string(waiting.front()->number);
  }
  return {};
}

}  // namespace emulation
}  // namespace nibble::backend::cuda
