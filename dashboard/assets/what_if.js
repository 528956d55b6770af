// The forms' addresses: what is typed in stands there, beside what the board keeps; the router is not told.
(function () {
  const VIEW = ["run", "x", "from", "to", "by", "step"];
  function show(query) {
    const text = query.toString().replaceAll("%2C", ",").replaceAll("%3A", ":").replaceAll("%3D", "=");
    window.history.replaceState(window.history.state, "", window.location.pathname + (text ? "?" + text : ""));
    return "";
  }
  window.dash_clientside = window.dash_clientside || {};
  window.dash_clientside.what_if = {
    keep: function (query, runs) {
      const known = new URLSearchParams(window.location.search);
      const next = new URLSearchParams(query || "");
      for (const name of VIEW) if (known.has(name)) next.set(name, known.get(name));
      const ids = (runs || []).map((run) => run.id).filter((id) => id);
      const shown = (next.get("run") || "").split(",").filter((key) => key);
      const same = shown.length && shown.every((key) => ids.includes(key.replace(/^r-/, "")));
      if (ids.length && !same) {
        for (const name of VIEW) next.delete(name);
        next.set("run", ids.map((id) => "r-" + id).join(","));
      }
      return show(next);
    },
    keep_sweep: function (query, runs) {
      const next = new URLSearchParams(query || "");
      for (const run of runs || []) if (run.id) next.set("run", run.id);
      return show(next);
    },
  };
})();
