#include "app/interrupt.h"

#include <csignal>

namespace nibble::app {
namespace {

volatile std::sig_atomic_t requested_flag = 0;  // a signal handler can reach nothing else

void on_interrupt(int) { requested_flag = 1; }

}  // namespace

Interrupt::Interrupt() {
  clear();
  struct sigaction action{};
  action.sa_handler = on_interrupt;  // no SA_RESTART: a read waiting for input returns
  sigaction(SIGINT, &action, nullptr);
}

Interrupt::~Interrupt() { std::signal(SIGINT, SIG_DFL); }

bool Interrupt::requested() const { return requested_flag != 0; }

void Interrupt::clear() { requested_flag = 0; }

}  // namespace nibble::app
