#include "app/run/turn_printer.h"

#include <fmt/format.h>

#include <variant>

namespace nibble::app {

void TurnPrinter::take(const std::vector<text::Event>& events) {
  for (const text::Event& event : events) std::visit([this](const auto& e) { on(e); }, event);
}

void TurnPrinter::on(const text::MessageStarted& started) {
  const text::MessageHeader& h = started.header;
  messages_.push_back({.role = h.role,
                       .name = h.name,
                       .recipient = h.recipient,
                       .channel = h.channel,
                       .content_type = h.content_type,
                       .content = {}});
  text_.clear();
  tokens_ = 0;
  started_ = std::chrono::steady_clock::now();
  if (h.recipient) show(fmt::format("→ {} ", *h.recipient));
}

void TurnPrinter::on(const text::TextDelta& delta) {
  text_ += delta.text;
  if (folds())
    terminal_.status(fmt::format("thinking, {} tokens", tokens_));
  else
    show(delta.text);
}

void TurnPrinter::on(const text::MessageEnded&) {
  messages_.back().content = {text_};
  if (!setup_.prints) return;
  terminal_.end_progress();
  if (folds()) {
    if (!terminal_.on_terminal()) return;  // a pipe gets the answer
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - started_;
    terminal_.print(terminal_.dim(fmt::format("thought for {:.1f} s, {} tokens", took.count(), tokens_)) + "\n");
  } else {
    terminal_.print(markdown_.finish() + "\n");
  }
}

bool TurnPrinter::folds() const {
  const text::Message& m = messages_.back();
  return !setup_.shows_reasoning && m.channel == text::kAnalysisChannel && !m.recipient;
}

void TurnPrinter::show(const std::string& text) {
  if (!setup_.prints) return;
  const bool answer = messages_.back().channel == text::kFinalChannel;
  if (answer && terminal_.colors())
    terminal_.print(markdown_.push(terminal_.safe(text)));
  else
    terminal_.print_foreign(text, !answer);
}

}  // namespace nibble::app
