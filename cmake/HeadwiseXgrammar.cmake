# Constrained decoding: built where the sources of xgrammar are (tools/install_xgrammar.sh; `make deps` brings them), unless
# HEADWISE_XGRAMMAR says otherwise. Without them requests that ask for a grammar are refused by name.
set(HEADWISE_XGRAMMAR AUTO CACHE STRING "Constrained decoding by xgrammar: ON, OFF, or AUTO: where its sources are found")
set_property(CACHE HEADWISE_XGRAMMAR PROPERTY STRINGS AUTO ON OFF)
set(HEADWISE_XGRAMMAR_DIR ${PROJECT_SOURCE_DIR}/build/xgrammar CACHE PATH "The sources of xgrammar")
mark_as_advanced(HEADWISE_XGRAMMAR_DIR)

set(HEADWISE_HAS_XGRAMMAR OFF)
if(NOT HEADWISE_XGRAMMAR)
  return()
endif()
if(NOT EXISTS ${HEADWISE_XGRAMMAR_DIR}/include/xgrammar/xgrammar.h)
  set(missing "no sources of xgrammar in ${HEADWISE_XGRAMMAR_DIR}: `tools/install_xgrammar.sh FOLDER` brings them")
  if(NOT HEADWISE_XGRAMMAR STREQUAL AUTO)
    message(FATAL_ERROR "HEADWISE_XGRAMMAR is ON, but there are ${missing}")
  endif()
  message(STATUS "Built without constrained decoding: ${missing}")
  return()
endif()
set(HEADWISE_HAS_XGRAMMAR ON)

# Its own build would bring flags of its own (-flto, -Werror). Its objects become part of headwise_core.
file(GLOB_RECURSE xgrammar_sources CONFIGURE_DEPENDS ${HEADWISE_XGRAMMAR_DIR}/cpp/*.cc)
list(FILTER xgrammar_sources EXCLUDE REGEX "/cpp/tvm_ffi/")
add_library(headwise_xgrammar OBJECT ${xgrammar_sources})
set_target_properties(headwise_xgrammar PROPERTIES CXX_STANDARD 17 CXX_STANDARD_REQUIRED ON CXX_EXTENSIONS OFF
                                                   POSITION_INDEPENDENT_CODE ON)
# What it has to say is caught (grammar/xgrammar_hooks.cc) and becomes a Status.
target_compile_definitions(headwise_xgrammar PUBLIC XGRAMMAR_ENABLE_CPPTRACE=0 XGRAMMAR_ENABLE_INTERNAL_CHECK=0
                                                    XGRAMMAR_LOG_CUSTOMIZE=1)
target_include_directories(headwise_xgrammar SYSTEM PUBLIC
  ${HEADWISE_XGRAMMAR_DIR}/include ${HEADWISE_XGRAMMAR_DIR}/3rdparty/dlpack/include ${HEADWISE_XGRAMMAR_DIR}/3rdparty/picojson)
target_compile_options(headwise_xgrammar PRIVATE -w)
if(HEADWISE_SANITIZE MATCHES undefined)
  # Not ours to mend; addresses and races are looked for all the same.
  target_compile_options(headwise_xgrammar PRIVATE -fno-sanitize=undefined)
endif()
