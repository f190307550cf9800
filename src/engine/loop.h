#pragma once
// The engine without its thread: all calls come from one thread. step() takes the next batch, enqueues it, and reads
// what the step before it drew.

#include "backend/backend.h"
#include "engine/engine.h"
#include "engine/pace.h"
#include "engine/scheduler.h"
#include "engine/speculation.h"
#include "engine/step_builder.h"

#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace nibble::engine {

// Throws Error(kInvalidRequest) for a request that can never be served, naming the field.
void validate(const Request& request, const EngineLimits& limits, const backend::Dims& dims);

class Loop {
 public:
  using Now = std::function<Sequence::Time()>;
  // As Engine.
  Loop(backend::Backend& be, const model::GptOss& model, const EngineLimits& limits,
       Now now = std::chrono::steady_clock::now);
  Loop(const Loop&) = delete;
  Loop& operator=(const Loop&) = delete;

  // REQUIRES that validate() accepts it and that the id is new. The receiver may call cancel().
  void add(RequestId id, Request request, Receiver receiver);
  void cancel(RequestId id);
  void cancel_all();
  void fail_all(const std::exception& why);

  // Nothing to do, and nothing in flight.
  [[nodiscard]] bool idle() const { return sequences_.empty() && !flight_; }
  void step();

  // Return whether to go on. False ends the request as kCancelled.
  using OnToken = std::function<bool(const TokenEvent& event)>;
  using OnPrompt = std::function<bool(int64_t done, int64_t total)>;  // after each step until all tokens are computed
  // Serves one request alone: adds it and steps until it has ended. Throws Error(kInvalidRequest) as validate() does,
  // and the error that made it fail. REQUIRES idle().
  Finished serve(Request request, const OnToken& on_token, const OnPrompt& on_prompt = {});

  // Called with each step before it is enqueued. The probe that it returns is called after each stage; with an empty
  // one the step runs as a whole.
  using Watch = std::function<model::Probe(const model::Step& step)>;
  void watch(Watch watch) { watch_ = std::move(watch); }

  // As in PrefixCache. REQUIRES that no request was added yet.
  void note_kv_events() { cache_.note_events(); }
  [[nodiscard]] std::vector<KvEvent> take_kv_events() { return cache_.take_events(); }

  // Drafts come from this one instead, whatever the method. For tests. REQUIRES speculation, and idle().
  void propose_with(std::unique_ptr<Proposer> proposer);

  [[nodiscard]] EngineStats stats() const;
  // Aborts when a page is lost or has two holders. For tests: testing/integrity.h.
  void check_integrity() const;

 private:
  struct Flight {
    struct Row {
      Sequence* sequence;
      int64_t from;
      int32_t count, drafted;
    };
    std::optional<backend::Ticket> ticket;
    std::vector<Row> rows;
    std::vector<LogitUse> uses;
    model::Taps taps;  // for who guesses from them
    Pace::Step pace;
    std::optional<DraftController::Step> step;  // without prompts, and as steps of its kind are run
    Sequence::Time scheduled, began;
    double proposing = 0;     // seconds of the host for drafts, while no other step ran
    bool waited_for = false;  // before another is enqueued
  };

  [[nodiscard]] Batch& schedule();
  [[nodiscard]] bool may_have_drafts(const Batch& batch) const;
  [[nodiscard]] Sequence::Time::duration read_for_drafts(const Batch& batch);
  [[nodiscard]] DraftController::Why add_drafts(Batch& batch);
  void copy_pages(Batch& batch);
  void make_masks(Batch& batch);
  [[nodiscard]] bool make_masks(Batch::Row& row);
  void make_mask(const Sequence& s, size_t nth, std::vector<uint32_t>& mask) const;
  [[nodiscard]] std::optional<Flight> enqueue(const Batch& batch);
  void read_flight();
  void tell_progress(const Flight& flight);
  void take_all(const Flight& flight, std::vector<backend::DrawnToken>&& drawn);
  void show_residuals(const Flight& flight);
  void judge_drafts(const Flight& flight, double seconds);
  void take(const LogitUse& use, backend::DrawnToken&& drawn);
  void take_token(const LogitUse& use, backend::DrawnToken&& drawn);
  void end(Sequence& s, FinishReason reason, Code code = {}, std::string message = {});
  void fail(Sequence& s, const std::exception& why);
  void drop_if_done(Sequence& s) {
    if (s.ended && s.steps_in_flight == 0) sequences_.erase(s.id);
  }

  backend::Backend& be_;
  const model::GptOss& model_;
  const EngineLimits limits_;
  PagePool pool_;
  PrefixCache cache_;
  Scheduler scheduler_;
  Pace pace_;
  std::unique_ptr<Speculation> speculation_;  // null: off
  bool unshown_ = false;                      // residuals of the last step that was read: nobody fetched them
  const Now now_;
  Sequence::Time last_end_{};  // of a step
  int64_t allowed_ = 0;        // prompt tokens, in the step scheduled
  bool alone_ = false;         // serve() runs: nobody else can come, so prompts fill the step
  StepBuilder builder_;
  std::unordered_map<RequestId, std::unique_ptr<Sequence>> sequences_;
  std::optional<Flight> flight_;
  EngineStats counts_;
  Watch watch_;
};

}  // namespace nibble::engine
