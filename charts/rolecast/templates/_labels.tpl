{{- define "rolecast.labels" -}}
app.kubernetes.io/name: rolecast
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/part-of: rolecast
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}
