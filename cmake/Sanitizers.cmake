# PAIRLOOM_SANITIZE=address|thread|undefined instruments everything that links pairloom_flags.
#
# Python itself is not instrumented: preload the runtime, e.g.
#   LD_PRELOAD="$(g++ -print-file-name=libasan.so) $(g++ -print-file-name=libstdc++.so)" ASAN_OPTIONS=detect_leaks=0 python -m pytest tests/ops
#
# (libstdc++ too: torch throws, and the runtime must have seen who throws.)
if(PAIRLOOM_SANITIZE)
  if(NOT PAIRLOOM_SANITIZE MATCHES "^(address|thread|undefined)$")
    message(FATAL_ERROR "PAIRLOOM_SANITIZE is '${PAIRLOOM_SANITIZE}'; allowed are address, thread and undefined")
  endif()
  target_compile_options(pairloom_flags INTERFACE -fsanitize=${PAIRLOOM_SANITIZE} -fno-sanitize-recover=all -fno-omit-frame-pointer -g -O1)
  target_link_options(pairloom_flags INTERFACE -fsanitize=${PAIRLOOM_SANITIZE})
endif()
