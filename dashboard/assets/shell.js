// The shell: theme, help, and which page is the current one.
window.dash_clientside = window.dash_clientside || {};
window.dash_clientside.shell = {
  // The stored theme, what the machine prefers at a first visit, or the other one after a click.
  switch: function (clicks, theme) {
    const dark = window.matchMedia("(prefers-color-scheme: dark)").matches;
    const now = theme || (dark ? "dark" : "light");
    return clicks ? (now === "dark" ? "light" : "dark") : now;
  },
  scheme: function (theme) {
    document.documentElement.dataset.theme = theme || "light";
    return theme || "light";
  },
  help: function (clicks, opened) {
    return !opened;
  },
  here: function (path, ids) {
    return ids.map((id) => (id.path === path ? "nav-link here" : "nav-link"));
  },
};
