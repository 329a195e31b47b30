// How operators refuse what they are given.
#pragma once

#include <sstream>
#include <stdexcept>

namespace pairloom {

// One sentence, without the file and line that torch's own macro would put before it.
template <class... Parts>
void check(bool condition, const Parts&... parts) {
  if (condition) return;
  std::ostringstream message;
  (message << ... << parts);
  throw std::runtime_error(message.str());
}

}  // namespace pairloom
