#include "app/setup/interrupt.h"

#include "app/setup/log_writer.h"
#include "base/error.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <thread>

namespace nibble::app {
namespace {

volatile std::sig_atomic_t requested_flag = 0;  // a signal handler can reach nothing else
volatile std::sig_atomic_t wake_fd = -1;        // readable once requested: the signal may come to any thread

void on_interrupt(int) {
  const int saved = errno;
  requested_flag = 1;
  eventfd_write(wake_fd, 1);
  errno = saved;
}

}  // namespace

Interrupt::Interrupt(std::span<const int> signals) {
  check(wake_fd < 0, "one Interrupt at a time");
  wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  check(wake_fd >= 0, "no file descriptor is left");
  requested_flag = 0;
  struct sigaction action{};
  action.sa_handler = on_interrupt;
  for (const int signal : signals) {
    struct sigaction before{};
    sigaction(signal, nullptr, &before);
    if (signal == SIGHUP && before.sa_handler == SIG_IGN) continue;
    sigaction(signal, &action, nullptr);
    before_.emplace_back(signal, before);
  }
}

Interrupt::~Interrupt() {
  for (const auto& [signal, before] : before_) sigaction(signal, &before, nullptr);
  close(wake_fd);
  wake_fd = -1;
}

DeafAtTheEnd::~DeafAtTheEnd() {
  for (const int signal : kEndings) std::signal(signal, SIG_IGN);
}

bool Interrupt::requested() const { return requested_flag != 0; }

void Interrupt::throw_if_requested() const {
  if (requested()) throw Interrupted();
}

void Interrupt::clear() {
  requested_flag = 0;
  eventfd_t count = 0;
  eventfd_read(wake_fd, &count);
}

bool Interrupt::wait_readable(int fd) const {
  while (true) {
    pollfd waited[2] = {{.fd = fd, .events = POLLIN, .revents = 0}, {.fd = wake_fd, .events = POLLIN, .revents = 0}};
    const int ready = poll(waited, 2, -1);
    if (waited[1].revents != 0 && ready > 0) return false;
    if (ready > 0) return true;
    check(ready == 0 || errno == EINTR, "poll failed");
  }
}

void end_now(ExitCode code, const std::string& says) {
  if (!says.empty()) say_last("nibble: " + says + "\n");
  std::_Exit(code);
}

void end_soon(const Ending& ending) {
  const auto end = [ending] {
    std::this_thread::sleep_for(ending.within);
    end_now(ending.code, ending.says);
  };
  std::thread(end).detach();
}

}  // namespace nibble::app
