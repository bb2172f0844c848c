# headwise_sources(a.cc b.cc): adds this folder's sources to the one library, `headwise`. The layers inside it are kept
# apart by tools/check_layers.py, which reads the include graph.
function(headwise_sources)
  target_sources(headwise PRIVATE ${ARGN})
endfunction()

# After so many seconds a test is taken for hung. Sanitizers slow the whole-model tests down more than tenfold.
set(HEADWISE_TEST_SECONDS 900)
set(HEADWISE_TEST_ENVIRONMENT LSAN_OPTIONS=suppressions=${PROJECT_SOURCE_DIR}/tests/leaks.supp:print_suppressions=0)
set(HEADWISE_SANITIZED 0)
if(HEADWISE_SANITIZE)
  set(HEADWISE_SANITIZED 1)
  set(HEADWISE_TEST_SECONDS 7200)
endif()

# headwise_test(NAME a_test.cc b_test.cc): one GoogleTest program of these files.
function(headwise_test name)
  if(NOT HEADWISE_BUILD_TESTS)
    return()
  endif()
  add_executable(${name}_test ${ARGN})
  target_link_libraries(${name}_test PRIVATE headwise headwise_private headwise_test_support GTest::gmock GTest::gtest_main)
  target_compile_definitions(${name}_test PRIVATE HEADWISE_SOURCE_DIR="${PROJECT_SOURCE_DIR}"
                                                  HEADWISE_SANITIZED=${HEADWISE_SANITIZED})
  include(GoogleTest)
  gtest_discover_tests(${name}_test TEST_PREFIX ${name}/ DISCOVERY_TIMEOUT 60
                       PROPERTIES TIMEOUT ${HEADWISE_TEST_SECONDS} ENVIRONMENT ${HEADWISE_TEST_ENVIRONMENT})
endfunction()

# What every one of our own targets is compiled with; not passed on to users of the installed library.
add_library(headwise_private INTERFACE)
target_include_directories(headwise_private INTERFACE ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR}/tests)
target_compile_options(headwise_private INTERFACE -Wall -Wextra -Wshadow -Wnon-virtual-dtor -Woverloaded-virtual)
if(HEADWISE_WARNINGS_AS_ERRORS)
  target_compile_options(headwise_private INTERFACE -Werror)
endif()
if(HEADWISE_BUILD_FUZZERS)
  add_compile_options(-fsanitize=fuzzer-no-link)  # coverage of the library's own branches
endif()
if(HEADWISE_SANITIZE)
  add_compile_options(-fsanitize=${HEADWISE_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${HEADWISE_SANITIZE})
  # GCC's flow analysis loses its way in instrumented code (in std::regex, for one) and warns of what is not there; and
  # of loops that are gone before it can unroll them, which has no name to be switched off by.
  target_compile_options(headwise_private INTERFACE $<$<CXX_COMPILER_ID:GNU>:-Wno-maybe-uninitialized;-Wno-error>)
endif()
