# Compiles through ccache where it is installed when the build folder is made. That is decided once: a ccache that appears
# later would change every command line, and everything would be compiled again.
find_program(HEADWISE_CCACHE ccache)
mark_as_advanced(HEADWISE_CCACHE)
if(NOT DEFINED CACHE{CMAKE_CXX_COMPILER_LAUNCHER} AND PROJECT_IS_TOP_LEVEL)
  set(launcher "")
  if(HEADWISE_CCACHE)
    set(launcher ${HEADWISE_CCACHE})
  endif()
  set(CMAKE_CXX_COMPILER_LAUNCHER "${launcher}" CACHE STRING "Program that compiler command lines are handed to")
endif()
